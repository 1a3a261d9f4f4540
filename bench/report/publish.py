"""Publish a run: ``results/NAME`` with its report, an index of all, and the README's table.

Run as ``python -m bench.report.publish [--keep-names] [FOLDER...]``: copies each folder, of ``bench
run`` or ``bench comm``, into ``results`` as ``MACHINE-DATE-SUITE``, its records compressed, without
names of users and hosts and without paths, unless asked to keep them. Then it makes everything that
is made from ``results`` again. The README holds the tables, and a chart a workload, of the newest
run of the suite ``quick``, between two comments.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import BenchError
from bench.plan.case import UNSAFE
from bench.records.collectives import COLLECTIVES, holds_collectives
from bench.records.lines import COMPRESSED, open_lines, place_of
from bench.records.record import RunInfo
from bench.records.store import RECORDS, RUN, read_run, write_atomically
from bench.report.collectives import load_collectives, write_collectives
from bench.report.index import README, RESULTS, SHOWN, excerpt, index, insert, newest
from bench.report.page import load, write_report
from bench.report.scrub import Scrub, scrubber
from bench.report.summary import cores_used, device_names

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
LONGEST = 40
"""Characters of a machine's name, and of a suite's."""


def name_of(info: RunInfo) -> str:
    """Such as ``amd-epyc-2-cores-2026-11-29-quick``."""
    date = DATE.match(info.started_at)
    parts = [_machine(info), date[0] if date else "undated", str(info.suite.get("name", "suite"))]
    return "-".join(_word(part) for part in parts)


def _machine(info: RunInfo) -> str:
    devices = device_names(info)
    if devices:
        return f"{len(devices)}x-{devices[0]}"
    return f"{info.environment.get('cpu')}-{cores_used(info) or 0}-cores"


def _word(text: str) -> str:
    return UNSAFE.sub("-", text)[:LONGEST].strip("-_").lower() or "unknown"


def publish(folder: Path, results: Path = RESULTS, *, keep_names: bool = False) -> Path:
    """Copy a run's files into ``results``; one that is there under another name takes its new one.

    Args:
        folder: of ``bench run`` or ``bench comm``.
        results: where published runs are.
        keep_names: of users, hosts and folders.

    Raises:
        BenchError: the folder is no finished run, or nothing was measured in it.
    """
    info, name = read_run(folder), COLLECTIVES if holds_collectives(folder) else RECORDS
    if not _has_figures(folder, name):
        raise BenchError(f"{folder}: nothing was measured in it")
    if info.ended_by != "complete":
        raise BenchError(f"{folder}: is no complete run: {info.ended_by or 'it has not ended'}")
    target = _place(info, results)
    is_there = target.exists() and target.samefile(folder)
    if is_there and place_of(folder, name) == target / f"{name}{COMPRESSED}":
        return target
    scrub: Scrub = _keep if keep_names else scrubber()
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=results, prefix=".new-") as place:
        new = Path(place) / "run"
        new.mkdir()
        (new / RUN).write_bytes(
            msgspec.json.format(msgspec.json.encode(scrub(msgspec.to_builtins(info))), indent=1)
        )
        lines = b"".join(msgspec.json.encode(scrub(one)) + b"\n" for one in _lines(folder, name))
        (new / f"{name}{COMPRESSED}").write_bytes(gzip.compress(lines, mtime=0))
        if target.exists():
            shutil.rmtree(target)
        if folder.resolve().parent == results.resolve() and not is_there:
            shutil.rmtree(folder)
        shutil.copytree(new, target)
    return target


def _keep(value: Any) -> Any:
    return value


def _has_figures(folder: Path, name: str) -> bool:
    if name == COLLECTIVES:
        return any(row.status == "ok" for row in load_collectives(folder)[1])
    return any(row.samples_per_s is not None for row in load(folder)[2])


def _place(info: RunInfo, results: Path) -> Path:
    """The run's folder: its own name, with a number where another run has that already."""
    name, number = name_of(info), 1
    while True:
        target = results / (name if number == 1 else f"{name}-{number}")
        if not (target / RUN).is_file() or read_run(target).run_id == info.run_id:
            return target
        number += 1


def _lines(folder: Path, name: str) -> Iterator[Any]:
    """The values of a file's lines; a line that is cut, or is none, was no result."""
    path = place_of(folder, name)
    assert path is not None, "it was read before"
    with open_lines(path) as file:
        for line in file:
            try:
                yield msgspec.json.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue


def rebuild() -> None:
    """Make all reports, the index and the README's part again.

    Raises:
        BenchError: a folder is no run, or the README has no place for results.
        OSError: something cannot be written.
    """
    for path in sorted(RESULTS.glob(f"*/{RUN}")):
        folder = path.parent
        (write_collectives if holds_collectives(folder) else write_report)(folder)
    RESULTS.mkdir(exist_ok=True)
    write_atomically(RESULTS / "README.md", index().encode())
    shown = newest(SHOWN)
    if shown is not None:
        readme = README.read_text(encoding="utf-8")
        write_atomically(README, insert(readme, excerpt(shown)).encode())


def main(arguments: list[str]) -> int:
    """Publish what is named, and make everything again; returns the exit code."""
    folders = [one for one in arguments if one != "--keep-names"]
    if any(one.startswith("-") for one in folders):
        sys.stderr.write(f"{str(__doc__).strip()}\n")
        return 2
    try:
        insert(README.read_text(encoding="utf-8"), "")  # before anything is changed: is it there?
        for folder in (
            *map(Path, folders),
            *(one.parent for one in sorted(RESULTS.glob(f"*/{RUN}"))),
        ):
            publish(folder, keep_names="--keep-names" in arguments)
        rebuild()
    except (BenchError, OSError) as error:
        sys.stderr.write(f"publish: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
