"""Publish a run: ``results/NAME`` with its report, an index of all, and the README's table.

Run as ``python -m bench.report.publish [FOLDER]``: copies the folder into ``results`` under the
name of its suite, then makes everything that is made from ``results`` again. The README holds the
scaling tables and one chart a workload of the suite ``quick``, between two comments.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from bench.errors import BenchError, plural
from bench.plan.case import file_name
from bench.records.record import RunInfo
from bench.records.store import RECORDS, RUN, read_run, write_atomically
from bench.report.markup import code, escape, picture
from bench.report.page import CHARTS, REPORT, footnotes, load, scaling, write_report
from bench.report.summary import device_names, summary
from bench.report.tables import tables_of

RESULTS = Path("results")
README = Path("README.md")
SHOWN = "quick"
"""Suite whose tables the README shows."""
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
"""What stands between them in the README is made from ``results``."""

INTRODUCTION = """\
# Results

Runs as they were measured, with all raw step times in `records.jsonl`. `bench report FOLDER` makes
a page again; `nox -s publish -- FOLDER` adds a run. Figures of different machines, or of different
versions, are not to be compared with each other.
"""


def publish(folder: Path, results: Path = RESULTS) -> Path:
    """Copy a run's files into ``results``, in the place of an older run of the same suite.

    Raises:
        BenchError: the folder is no finished run.
    """
    info, _, rows = load(folder)
    if not any(row.samples_per_s is not None for row in rows):
        raise BenchError(f"{folder}: nothing was measured in it")
    if info.ended_by != "complete":
        raise BenchError(f"{folder}: is no complete run: {info.ended_by or 'it has not ended'}")
    suite = _suite_of(info, folder)
    target = results / file_name(suite)
    if target.exists() and target.samefile(folder):
        return target
    if target.exists() and _suite_of(read_run(target), target) != suite:
        raise BenchError(f"{target}: holds a run of another suite; give one of them another name")
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=results, prefix=".new-") as name:
        for file in (RUN, RECORDS):
            shutil.copyfile(folder / file, Path(name) / file)
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(name, target)
    return target


def _suite_of(info: RunInfo, folder: Path) -> str:
    return str(info.suite.get("name", folder.name))


def index(results: Path = RESULTS) -> str:
    """The page that lists all published runs."""
    parts = [INTRODUCTION]
    for folder in sorted(path.parent for path in results.glob(f"*/{RUN}")):
        info, records, rows = load(folder)
        name = _suite_of(info, folder)
        parts += [
            f"## [{escape(name)}]({quote(folder.name)}/{REPORT})",
            escape(str(info.suite.get("description", ""))),
            f"{escape(machine(info))}\n\n{summary(info, records, rows)}",
        ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def machine(info: RunInfo) -> str:
    """Where a run was measured, in a sentence."""
    environment, devices = info.environment, device_names(info)
    found = environment.get("cores")
    cores = plural(len(found) if isinstance(found, list) else 0, "core")
    what = f"{len(devices)} x {devices[0]}" if devices else f"{cores} of {environment.get('cpu')}"
    return f"Measured on {what}, torch {info.versions.get('torch')}."


def excerpt(folder: Path) -> str:
    """What the README shows of a run: each workload's scaling table and its chart of throughput."""
    info, records, rows = load(folder)
    parts = [f"The suite {code(_suite_of(info, folder))}. {escape(machine(info))}"]
    parts.append(summary(info, records, rows))
    place = f"{quote(folder.as_posix())}/{CHARTS}"
    for table in tables_of(rows):
        notes, text = scaling(table)
        parts += [f"### {escape(table.title)}", f"{escape(table.rule.capitalize())}.", text]
        parts += [escape(table.noise), footnotes(notes)]
        charts = sorted((folder / CHARTS).glob(f"*{table.stem}-throughput.svg"))
        parts += [picture(f"Throughput: {table.title}", f"{place}/{one.name}") for one in charts]
    parts.append(
        f"[The whole report]({quote(folder.as_posix())}/{REPORT}), with raw data beside it."
    )
    return "\n\n".join(part for part in parts if part)


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


def main(arguments: list[str]) -> int:
    """Publish what is named, and make everything again; returns the exit code."""
    if any(argument.startswith("-") for argument in arguments):
        sys.stderr.write(f"{str(__doc__).strip()}\n")
        return 2
    try:
        readme = README.read_text(encoding="utf-8")
        insert(readme, "")  # before anything is changed: is this the place, and has it room?
        for argument in arguments:
            publish(Path(argument))
        for path in sorted(RESULTS.glob(f"*/{RUN}")):
            write_report(path.parent)
        RESULTS.mkdir(exist_ok=True)
        write_atomically(RESULTS / "README.md", index().encode())
        if (RESULTS / SHOWN / RUN).is_file():
            write_atomically(README, insert(readme, excerpt(RESULTS / SHOWN)).encode())
    except (BenchError, OSError) as error:
        sys.stderr.write(f"publish: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
