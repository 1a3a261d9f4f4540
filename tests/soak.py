"""A long run of cases with random faults: ``python -m tests.soak [CASES] [--seed SEED]``.

Every case must end as its rows with the right status, no process may be left, and the memory of the
parent, which lives as long as the run, must not grow. Exits 1 where one of these is not so.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil

from bench.records.record import Record
from bench.records.store import RUN, read_records, read_run
from tests.faults import RANK_FAULTS

GROWTH_BYTES = 64 * 2**20
"""By which the parent's memory may grow from the run's second fifth to its last one: that of a
record that is kept is a few KB, and what the allocator keeps varies by some tens of MB."""
PERIOD_S, END_S = 0.5, 5.0
GOOD = "UNWRAPPED"
"""A strategy without a fault: one case in four."""
SUITE = """\
name: soak
defaults:
  launches: 1
  window: {{min_steps: 4, max_s: 0.2, target_interval: 0.5}}
  limits: {{warm_up_s: 4, pass_s: 15, window_s: 30}}
matrix:
{blocks}
"""


def main() -> int:
    """Run, then say what was seen; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", type=int, nargs="?", default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chosen = choose(arguments.cases, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        begin_s = time.monotonic()
        memory, left = soak(folder, chosen)
        problems = [*check_rows(chosen, read_records(folder / "out")), *check_memory(memory)]
        problems += [f"left behind: process {one}" for one in left]
        problems += [f"left behind: {path.name}" for path in folder.glob("bench-*")]
    sys.stdout.write(
        f"{len(chosen)} cases in {time.monotonic() - begin_s:.0f} s; "
        f"parent's memory {min(memory) / 2**20:.0f} to {max(memory) / 2**20:.0f} MiB\n"
    )
    sys.stdout.write(("\n".join(problems) or "nothing lost, nothing left") + "\n")
    return 1 if problems else 0


def choose(cases: int, seed: int) -> list[str]:
    """The strategy of each case, by its number."""
    pick = random.Random(seed)
    faulty = [fault.strategy for fault in RANK_FAULTS]
    return [GOOD if pick.random() < 0.25 else pick.choice(faulty) for _ in range(cases)]


def soak(folder: Path, chosen: Sequence[str]) -> tuple[list[int], list[psutil.Process]]:
    """Run the cases as one suite; returns the parent's memory over time, and what outlived it."""
    blocks = (
        "  - {workloads: [transformer:tiny], world_sizes: [2], "
        f"strategies: ['tests.fakes:{name}'], seed: {number}}}"
        for number, name in enumerate(chosen)
    )
    (folder / "soak.yaml").write_text(SUITE.format(blocks="\n".join(blocks)))
    memory: list[int] = []
    seen: set[psutil.Process] = set()
    with (folder / "log").open("wb") as log:
        process = psutil.Popen(
            [sys.executable, "-m", "bench", "run", "soak.yaml", "--out", "out"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=os.environ | {"TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        while process.poll() is None:
            try:
                seen |= set(process.children(recursive=True))
                if not has_ended(folder / "out"):  # drawing the report's charts is another matter
                    memory.append(process.memory_info().rss)
            except psutil.NoSuchProcess:
                break
            time.sleep(PERIOD_S)
        process.wait()
    left = wait_for(seen)
    for one in left:
        one.kill()
    return memory, left


def wait_for(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended within a few seconds.

    Looked at again and again: what waits for a process may find its number gone, or taken.
    """
    left = list(processes)
    until_s = time.monotonic() + END_S
    while left and time.monotonic() < until_s:
        time.sleep(0.1)
        left = [one for one in left if _runs(one)]
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def has_ended(folder: Path) -> bool:
    """Whether the last row is written."""
    return (folder / RUN).exists() and read_run(folder).ended_by is not None


def check_rows(chosen: Sequence[str], records: Sequence[Record]) -> Iterator[str]:
    """What is wrong with the rows: each case has one for each pass, with the status foreseen."""
    expected = {fault.strategy: fault.status for fault in RANK_FAULTS} | {GOOD: "ok"}
    by_key: dict[tuple[int, str], list[Record]] = {}
    for record in records:
        by_key.setdefault((record.case.seed, record.pass_), []).append(record)
    for number, name in enumerate(chosen):
        rows = by_key.get((number, "timing"), [])
        if len(rows) != 1:
            yield f"case {number}, {name}: {len(rows)} timed rows"
        elif rows[0].status != expected[name]:
            yield f"case {number}, {name}: {rows[0].status}: {rows[0].reason}"
        for pass_ in ("parity", "memory"):
            if len(by_key.get((number, pass_), [])) != 1:
                yield f"case {number}, {name}: no row of pass {pass_}, or several"


def check_memory(memory: Sequence[int]) -> Iterator[str]:
    """Whether the parent's memory grew; it imports and fills its caches in the first fifth."""
    fifth = len(memory) // 5
    if fifth == 0:
        return
    early, late = max(memory[fifth : 2 * fifth]), max(memory[-fifth:])
    if late - early > GROWTH_BYTES:
        yield f"the parent's memory grew by {(late - early) / 2**20:.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
