"""Others' text in pages and terminals: shown as it is, and never obeyed."""

from __future__ import annotations

import html
import re
import warnings
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from bench.analyze.scaling import rows_of
from bench.errors import CONTROL, one_line
from bench.plan.case import file_name
from bench.plan.reader import MAX_NAME
from bench.records.record import Throughput
from bench.records.store import read_run
from bench.report import publish
from bench.report.charts import write_charts
from bench.report.index import excerpt, index
from bench.report.markup import code, escape
from bench.report.page import plain
from bench.report.tables import tables_of
from tests.analyze.test_scaling import launches
from tests.fakes import make_case
from tests.fuzz.odd import TEXTS
from tests.report.test_page import make_folder

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
PIECES = st.sampled_from(
    [*TEXTS, "\\", "`", "*", "_", "[", "](", "<", ">", "&amp;", "|", "~~", " "]
)


@pytest.mark.parametrize("text", TEXTS)
def test_markdown_shows_text_as_it_is(text: str) -> None:
    rendered = MARKDOWN.render(f"{escape(text)}\n")
    assert re.sub("</?span>", "", rendered) == _paragraph(text)


@given(st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=6).map("".join))
def test_markdown_shows_any_text_as_it_is(text: str) -> None:
    rendered = MARKDOWN.render(f"{escape(text)}\n")
    assert re.sub("</?span>", "", rendered) == _paragraph(text)
    cell = MARKDOWN.render(f"| a | b |\n|---|---|\n| {escape(text)} | x |\n")
    assert cell.count("<td>") == 2


def _paragraph(text: str) -> str:
    shown = html.escape(one_line(text, limit=5000)).replace("&#x27;", "'")
    # GitHub would make a link of the address, or call the user: what keeps them apart is dropped.
    return f"<p>{shown}</p>\n" if shown else ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://a.example", r"https\://a.example"),
        ("see www.a.example", r"see www\.a.example"),
        ("@someone", "<span>@</span>someone"),
        ("AMD EPYC @ 2.6 GHz", "AMD EPYC @ 2.6 GHz"),
        ("me@a.example", "me<span>@</span>a.example"),
        ("![x](y)", r"!\[x\](y)"),
        ("<img src=x>", r"\<img src=x\>"),
        ("&#x202e;", r"\&\#x202e;"),
        ("$x$", "<span>$</span>x<span>$</span>"),
        ("- a", r"\- a"),
        ("-3.1%", "-3.1%"),
        ("1. a", r"1\. a"),
        ("1.5 ± 0.1", "1.5 ± 0.1"),
        ("a\u202eb\u200bc\x1b[1md\x00", "abcd"),
    ],
)
def test_marks_and_links_are_escaped(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_code_cannot_be_left() -> None:
    assert code("a`<img>`\nb") == "`a<img> b`"
    assert code("``") == "` `"


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31m",
        "\x1b]0;title\x07",
        "\x1b]8;;http://a\x1b\\",
        "\x9b31m",
        "\u202e",
        "\u2066",
        "\u200b",
        "\u200f",
        "\ufeff",
        "\u00ad",
        "\U000e0041",
        "\x7f",
        "\ud800",
    ],
)
def test_what_a_terminal_obeys_or_hides_is_dropped(text: str) -> None:
    assert CONTROL.search(one_line(f"a{text}b")) is None
    assert "\x1b" not in one_line(text)


@pytest.mark.parametrize("text", TEXTS)
def test_a_label_and_a_reason_are_harmless_wherever_they_are_shown(text: str) -> None:
    case = make_case(strategy="ddp", label=text or "x", workload="w" + text)
    unit = Throughput(samples_per_s=100, unit=text, units_per_sample=1)
    records = launches(case, 99, 100, flags=[text], throughput=unit)
    terminal = plain(rows_of([], records))
    assert CONTROL.search(terminal) is None
    (table,) = tables_of(rows_of([], records))
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,100}", table.stem)
    assert not table.stem.startswith("-")


@pytest.mark.parametrize("text", [*TEXTS, "com1", "NUL", "a/b", "a\\b", "-rf"])
def test_a_name_stays_in_its_folder(text: str, tmp_path: Path) -> None:
    name = file_name(text)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,90}", name)
    assert name.lower() not in {"con", "nul", "com1"}
    assert (tmp_path / name).parent == tmp_path
    assert len(file_name("a" * MAX_NAME)) == MAX_NAME


@pytest.mark.parametrize("text", ["../../outside", "..", "/abs", "a" * 3000, "con", "<b>`x`"])
def test_a_run_is_published_within_results(text: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run")
    info = read_run(folder)
    info.suite["name"] = text
    (folder / "run.json").write_bytes(msgspec.json.encode(info))
    results = tmp_path / "deep" / "results"
    target = publish.publish(folder, results)
    assert target.parent == results
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "run"]
    assert "<b>" not in index(results).replace("\\<", "")
    assert "`x`" not in excerpt(target)


def test_a_run_whose_name_another_has_is_not_its_replacement(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run")
    targets = []
    for name in ("a b", "a-b"):
        info = read_run(folder)
        info.suite["name"] = info.run_id = name
        (folder / "run.json").write_bytes(msgspec.json.encode(info))
        targets.append(publish.publish(folder, tmp_path / "results").name)
    assert targets == ["a-cpu-2-cores-2026-01-01-a-b", "a-cpu-2-cores-2026-01-01-a-b-2"]


def test_charts_take_a_name_for_a_name(tmp_path: Path) -> None:
    case = make_case(strategy="ddp", label="$\\frac{$ <b> -- \x00 \u202e 表", workload="x" * 400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        charts = write_charts(tables_of(rows_of([], launches(case, 99, 100))), tmp_path)
    assert charts[0]
    assert {path.parent for path in tmp_path.rglob("*")} == {tmp_path}
