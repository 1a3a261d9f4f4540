"""What must hold for every suite and every results folder, whatever is in it."""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

import msgspec
import torch._dynamo.backends.distributed  # noqa: F401 - asked about buckets; not named by a suite

from bench.analyze.compare import Side, compared, judge
from bench.analyze.recommend import recommend
from bench.analyze.rows import Row
from bench.errors import CONTROL, BenchError
from bench.plan.case import Machine, PlannedCase
from bench.plan.matrix import expand
from bench.plan.registry import all_sources, all_strategies, all_workloads
from bench.plan.suite import parse_suite
from bench.records.environment import differences
from bench.records.record import RunInfo
from bench.report import comparison, recommendation
from bench.report.charts import write_charts
from bench.report.comparison_data import as_data
from bench.report.document import Document
from bench.report.export import as_csv, flat
from bench.report.html import html_of
from bench.report.index import machine as where
from bench.report.markdown import markdown_of, parts_of
from bench.report.markup import escape
from bench.report.page import CHARTS, document, load, plain
from bench.report.published import beside_rows
from bench.report.pytest_benchmark import document as benchmarks
from bench.report.tables import tables_of
from tests.fuzz import results
from tests.fuzz.guard import guarded
from tests.report.test_html import Parsed
from workloads import vision

html_of(Document(title="", parts=[]))  # reads the templates, which are no part of a page
LONGEST_LINE = 1000
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
NAMED = re.compile(r"([\w.]+):\w+")
NO_NUMBER = re.compile(r"(?<![A-Za-z])(?:nan|inf|infinity)(?![A-Za-z])", re.IGNORECASE)
ALIVE = re.compile(
    r"(?<!\\)<(?!/?(?:sup|span)>)"  # a tag that is not ours
    r"|(?<!\\)\]\((?!charts/)"  # a link or picture likewise
    r"|(?<!\\)://|www\.|@\w"  # what GitHub makes a link of
)
"""What must not stand in markdown as it was given."""
KINDS = {
    "is not valid YAML": "broken YAML",
    "nested more than": "beyond a limit",
    "more than": "beyond a limit",
    "alias stands inside": "beyond a limit",
    "half a character": "beyond a limit",
    "unknown key": "unknown key",
    "unknown workload": "unknown name",
    "unknown strategy": "unknown name",
    "no preset": "unknown name",
    "no option": "unknown name",
    "no field": "filter",
    "cannot be read": "filter",
    "no case matches": "filter",
    "cannot be imported": "own module",
    "Expected": "wrong type or range",
    "invalid value": "wrong type or range",
    "must be": "wrong type or range",
    "is missing": "missing or empty",
    "is empty": "missing or empty",
    "divide": "batch",
    "scaling": "batch",
    "second time": "planned twice",
}


def kind_of(error: BenchError) -> str:
    """A word or two for the tally; checks that it is one harmless line."""
    text = str(error)
    assert text, "an error without words"
    assert len(text) <= LONGEST_LINE, f"an error of {len(text)} characters"
    assert text == " ".join(text.split()), f"more than one line: {text!r}"
    assert CONTROL.search(text) is None, f"control characters: {text!r}"
    return next((kind for words, kind in KINDS.items() if words in text), type(error).__name__)


@functools.cache
def load_all() -> None:
    """Import what the package itself needs at its first use."""
    all_workloads()
    all_strategies()
    all_sources()
    vision.names()


def check_suite(text: str, machine: Machine) -> str:
    """Plan it; returns ``planned`` or the kind of its mistake."""
    modules = {found.group(1) for found in NAMED.finditer(text)}
    load_all()
    parents = {".".join(name.split(".")[:n]) for name in modules for n in range(1, 9)}
    with guarded(frozenset(parents)), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*no case of this block matches")
        try:
            planned = expand(parse_suite(text, source="fuzz.yaml"), machine)
        except BenchError as error:
            return kind_of(error)
    for one in planned[:20]:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,150}", one.case.id), one.case.id
        again = msgspec.json.decode(msgspec.json.encode(one), type=PlannedCase)
        assert again.case.id == one.case.id
    return "planned"


def check_folder(folder: Path, *, charts: bool, others: bool = False) -> str:
    """Report on it; returns ``reported`` or the kind of error.

    Args:
        folder: of results.
        charts: draw them too, which takes a hundred times as long.
        others: make all else that is made of rows, too.
    """
    with guarded(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            info, records, rows = load(folder)
        except BenchError as error:
            return kind_of(error)
        tables = tables_of(rows)
        shown = document(info, records, tables)
        page = f"{markdown_of(shown, CHARTS)}\n{escape(where(info))}"
        whole = html_of(shown)
        terminal = plain(rows)
        if others:
            _check_others(info, rows)
    for warning in caught:
        assert warning.category is UserWarning, warning
        assert "left out" in str(warning.message), warning
    _check_text(page)
    _check_text(terminal)
    _check_html(whole)
    for table in tables:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,120}|-[a-z0-9-]+", table.stem), table.stem
    alive = ALIVE.search(page)
    assert alive is None, page[max(0, alive.start() - 80) :][:200]
    if charts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = write_charts(tables, folder / "charts")
        for chart in (one for several in drawn for one in several):
            assert chart.problem is None, chart
            Xml.fromstring(chart.svg.read_bytes())
            assert chart.svg.parent == folder / "charts"
    return "reported, lines left out" if caught else "reported"


def _check_html(page: str) -> None:
    """Nothing obeys in it but what is ours, and every tag is closed."""
    found = Parsed(page)
    assert found.open == []
    assert len(found.of("script")) == 1
    for tag, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert attributes.get("href", "#").startswith("#"), (tag, attributes)
    control = CONTROL.search(page.replace("\n", " "))
    assert control is None, page[max(0, control.start() - 80) :][:200]


@functools.cache
def published() -> Side:
    """A run that is as it should be, to compare others with."""
    info, _records, rows = load(results.published())
    return Side(name="published", info=info, rows=rows)


def _has_environment(info: RunInfo) -> bool:
    try:
        differences(info.environment, info.environment)
    except (TypeError, AttributeError):
        return False
    return True


def _check_others(info: RunInfo, rows: Sequence[Row]) -> None:
    """A comparison, a recommendation, published figures, and rows for programs."""
    pages = [parts_of(beside_rows(rows), CHARTS) if rows else ""]
    if _has_environment(info):  # else the command says so in one line
        other = Side(name="x", info=info, rows=[*rows])
        for sides in ((published(), other), (other, published())):
            found = compared(*sides)
            pages.append(comparison.markdown(found, judge(found, 5)))
            msgspec.json.encode(as_data(found, judge(found, 5)))
    answers = recommend(rows, devices=2, memory_bytes=1.2 * 2**30)
    text = recommendation.markdown(info, answers, 1.2)
    for program in PROGRAM.findall(text):
        ast.parse(program)
    pages.append(PROGRAM.sub("", text))
    for page in pages:
        _check_text(page)
        alive = ALIVE.search(page.replace("<details><summary>", "").replace("</summary>", "")
                             .replace("</details>", ""))  # fmt: skip
        assert alive is None, alive
    msgspec.json.encode(recommendation.as_data(info, answers, 1.2))
    as_csv([flat("x", row) for row in rows])
    msgspec.json.encode(benchmarks([("", info, rows)]))


def _check_text(text: str) -> None:
    control = CONTROL.search(text)
    assert control is None, text[max(0, control.start() - 80) :][:200]
    number = NO_NUMBER.search(text)
    assert number is None, text[max(0, number.start() - 80) :][:200]
    text.encode()
