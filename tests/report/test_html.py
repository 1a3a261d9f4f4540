"""The page as one file: nothing from outside in it, nothing obeyed, and usable by anybody."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.analyze.scaling import rows_of
from bench.report.charts import write_charts
from bench.report.document import Cell, Document, Fold, Grid, Heading, Items, Part, Prose, Text
from bench.report.html import IN_THE_DARK, html_of, sort_key
from bench.report.page import document, write_report
from bench.report.tables import tables_of
from tests.analyze.test_scaling import launches
from tests.fakes import make_case
from tests.report.test_page import make_folder, make_info

HOSTILE = '<script>alert(1)</script>" onload="x" \u202e\x1b[31m{{ 7 * 7 }} --> </svg>'
EMPTY = {"meta", "input", "br", "wbr", "hr", "img", "link"}


class Parsed(HTMLParser):
    """What a browser sees: tags with their attributes, and whether they are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str]]:
        return [found for name, found in self.tags if name == tag]


def hostile_page(folder: Path) -> str:
    records = [
        *launches(make_case(), 99, 100, 101),
        *launches(make_case(strategy="ddp", label=HOSTILE, world_size=2), 179, 180, 181),
        *launches(make_case(strategy="fsdp", workload=HOSTILE, world_size=2), 179, 180, 181),
    ]
    tables = tables_of(rows_of([], records))
    info = make_info()
    info.suite |= {"name": HOSTILE, "description": HOSTILE}
    info.environment["cpu"] = HOSTILE
    return html_of(document(info, records, tables, write_charts(tables, folder)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return hostile_page(tmp_path_factory.mktemp("charts"))


def test_what_records_say_is_shown_and_never_obeyed(page: str) -> None:
    found = Parsed(page)
    assert found.open == []
    assert len(found.of("script")) == 1
    assert not [
        name for _, attributes in found.tags for name in attributes if name.startswith("on")
    ]
    assert "\u202e" not in page
    assert "\x1b" not in page
    shown = " ".join(found.texts)
    assert '<script>alert(1)</script>" onload="x" {{ 7 * 7 }}' in shown
    assert found.of("svg")


def test_it_needs_no_network(page: str) -> None:
    found = Parsed(page)
    for _, attributes in found.tags:
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert attributes.get(name, "#").startswith("#")
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in found.tags}
    policy = [one["content"] for one in found.of("meta") if "http-equiv" in one]
    assert policy[0].startswith("default-src 'none'")
    assert "@import" not in page


def test_ids_are_unique_and_links_lead_somewhere(page: str) -> None:
    found = Parsed(page)
    ids = Counter(one["id"] for _, one in found.tags if "id" in one)
    assert max(ids.values()) == 1
    links = [one.get("href", one.get("xlink:href", "")) for _, one in found.tags]
    assert {link[1:] for link in links if link} <= ids.keys()


def test_pictures_and_tables_have_words(page: str) -> None:
    found = Parsed(page)
    assert all(one["role"] == "img" and one["aria-label"] for one in found.of("svg"))
    assert len(found.of("caption")) == len(found.of("table")) > 2
    assert "told_1" in page  # values where one points at what is drawn
    assert any(one.get("title") == "each launch: 99.0, 100, 101" for one in found.of("td"))


def contrast(one: str, other: str) -> float:
    """Of WCAG 2.1: (L1 + 0.05) / (L2 + 0.05), with the relative luminance of sRGB."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_in_the_dark() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    paper = IN_THE_DARK["#ffffff"]
    marks = IN_THE_DARK.keys() - {"#ffffff", "#dddddd"}  # what lies behind others may be faint
    assert all(contrast(IN_THE_DARK[colour], paper) > 4 for colour in marks)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("1,766 ± 262", "1766"),
        ("+51.5% (+24.6% to +84.3%)", "+51.5"),
        ("-54.9%", "-54.9"),
        ("0.682 / 0.456", "0.682"),
        ("first 3.00, others 1.00", "3.00"),
        ("no clear difference, +6% (-1% to +14%)", "+6"),
        ("no clear difference", ""),
        ("–", ""),
    ],
)
def test_columns_are_sorted_by_their_first_number(text: str, key: str) -> None:
    assert sort_key(Cell(text=text), False) == key


def test_every_kind_of_part_is_written() -> None:
    grid = Grid(
        caption="a table",
        headings=["name", "n"],
        is_text=[True, False],
        body=[[Cell(text="x", marks=(1,)), Cell(text="2", is_struck=True, hover="of 1 launch")]],
        below=[Text("below", is_strong=True)],
        common=["common"],
        notes=["a <note>"],
    )
    parts: list[Part] = [
        Heading(2, "One"),
        Prose("*so* `it` is"),
        Items(["i"]),
        Fold("more", [grid]),
        grid,
    ]
    text = html_of(Document(title="t", parts=parts))
    found = Parsed(text)
    assert found.open == []
    assert "<em>so</em> <code>it</code> is" in text
    assert "<s>2</s>" in text
    assert text.count("<strong>below</strong>") == text.count("All rows: common") == 2
    assert text.count('title="a &lt;note&gt;"') == 2
    assert len(found.of("details")) == 1
    assert '<a href="#s1">One</a>' in text


def test_it_stands_beside_the_markdown_and_is_the_same_each_time(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write_report(folder)
    first = (folder / "report.html").read_bytes()
    write_report(folder)
    assert (folder / "report.html").read_bytes() == first
