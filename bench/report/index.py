"""What is made from all published runs: the page that lists them, and the README's part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from tabulate import tabulate

from bench.errors import BenchError, plural
from bench.records.collectives import holds_collectives
from bench.records.record import RunInfo
from bench.records.store import RUN, read_run
from bench.report.collectives import FOR_COMPARISON, found, load_collectives
from bench.report.document import Heading, Part, Text
from bench.report.drawing import Chart
from bench.report.findings import headline
from bench.report.markdown import parts_of
from bench.report.markup import code, escape
from bench.report.page import CHARTS, REPORT, load, scaling, what_was_found
from bench.report.summary import cores_used, device_names, summary
from bench.report.tables import tables_of

RESULTS = Path("results")
README = Path("README.md")
SHOWN = "quick"
"""Suite whose tables the README shows."""
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
"""What stands between them in the README is made from ``results``."""

INTRODUCTION = """\
# Results

Runs as they were measured, each with its report, its charts and all raw step times in
`records.jsonl.gz`; `report.html` is the same page with tables to sort and filter, to be opened in a
browser. `bench report FOLDER` makes the pages again; `nox -s publish -- FOLDER` adds a run. Figures
of different machines, or of different versions, are not to be compared with each other.
"""


def folders(results: Path = RESULTS) -> list[Path]:
    """All published runs, by name."""
    return sorted(path.parent for path in results.glob(f"*/{RUN}"))


def newest(suite: str, results: Path = RESULTS) -> Path | None:
    """The last run of a suite; None where none is published."""
    runs = [(read_run(one).started_at, one) for one in folders(results) if suite_of(one) == suite]
    return max(runs)[1] if runs else None


def suite_of(folder: Path) -> str:
    """Name of a run's suite."""
    return str(read_run(folder).suite.get("name", folder.name))


def index(results: Path = RESULTS) -> str:
    """The page that lists all published runs, a row each."""
    body = []
    for folder in folders(results):
        info = read_run(folder)
        suite = f"[{escape(suite_of(folder))}]({quote(folder.name)}/{REPORT})"
        date = escape(info.started_at[:10])
        body.append([escape(where(info)), suite, date, escape(_headline(folder))])
    heads = ["machine", "suite", "measured", "what was found first"]
    table = tabulate(body, heads, tablefmt="github", disable_numparse=True)
    return f"{INTRODUCTION}\n{table}\n"


def _headline(folder: Path) -> str:
    if holds_collectives(folder):
        _, rows, limits = load_collectives(folder)
        sentences = [*found(rows, limits)]
        return next((one for one in sentences if not one.startswith(FOR_COMPARISON)), "no figure")
    return headline(tables_of(load(folder)[2]))


def where(info: RunInfo) -> str:
    """What a run was measured on, such as: 2 cores of AMD EPYC, torch 2.14.1."""
    devices = device_names(info)
    count = plural(cores_used(info) or 0, "core")
    what = (
        f"{len(devices)} x {devices[0]}" if devices else f"{count} of {info.environment.get('cpu')}"
    )
    return f"{what}, torch {info.versions.get('torch')}"


def machine(info: RunInfo) -> str:
    """Where a run was measured, in a sentence."""
    return f"Measured on {where(info)}."


def excerpt(folder: Path) -> str:
    """What the README shows of a run: what was found, each scaling table, and a chart of it."""
    info, records, rows = load(folder)
    place = f"{quote(folder.as_posix())}/{CHARTS}"
    tables = tables_of(rows)
    parts: list[Part] = [*what_was_found(tables), Text(summary(info, records, rows))]
    for table in tables:
        parts += [Heading(3, table.title), Text(f"{table.rule.capitalize()}."), scaling(table)]
        charts = sorted((folder / CHARTS).glob(f"*{table.stem}-throughput.svg"))
        parts += _pictures(charts, f"Throughput: {table.title}")
    return "\n\n".join(
        [
            f"The suite {code(suite_of(folder))}. {escape(machine(info))}",
            parts_of(parts, place),
            f"[The whole report]({quote(folder.as_posix())}/{REPORT}), with raw data beside it.",
        ]
    )


def _pictures(files: Sequence[Path], title: str) -> list[Part]:
    return [Chart(title=title, svg=one, png=one.with_suffix(".png")) for one in files]


def insert(readme: str, text: str) -> str:
    """The README with another text between its two comments.

    Raises:
        BenchError: it lacks them.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{README}: has no place for results, {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
