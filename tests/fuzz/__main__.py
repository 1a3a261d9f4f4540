"""Try many suites and results folders; exit code 1 where one ends in anything but a plan, a report
or one line, or where fewer than three suites in ten are planned.

Run as ``python -m tests.fuzz [COUNT] [SEED]``: 100,000 of both together without an argument, which
takes the better part of an hour. A seed tries the same again.
"""

from __future__ import annotations

import secrets
import sys
import time

from tests.fuzz.session import Tally, try_folders, try_suites

COUNT = 100_000
SUITES = 0.7
"""Share of suites; the others are results folders."""
LEAST_PLANNED = 0.3


def main(arguments: list[str]) -> int:
    """Try them and print what they ended in."""
    count = int(arguments[0]) if arguments else COUNT
    seed = int(arguments[1]) if len(arguments) > 1 else secrets.randbelow(2**31)
    sys.stdout.write(f"seed {seed}: python -m tests.fuzz {count} {seed} tries the same\n")
    sys.stdout.flush()
    began_s = time.monotonic()
    suites = try_suites(round(count * SUITES), seed)
    _show("suites", suites, time.monotonic() - began_s)
    began_s = time.monotonic()
    folders = try_folders(count - round(count * SUITES), seed)
    _show("results folders", folders, time.monotonic() - began_s)
    planned = suites["planned"] / suites.total()
    kept = planned >= LEAST_PLANNED
    sys.stdout.write(f"{planned:.0%} of the suites were planned{'' if kept else ': too few'}\n")
    return 0 if kept else 1


def _show(what: str, tally: Tally, passed_s: float) -> None:
    total = tally.total()
    sys.stdout.write(f"{total:,} {what} in {passed_s:.0f} s, {total / passed_s:.0f} a second\n")
    for kind, count in tally.most_common():
        sys.stdout.write(f"  {count:7,}  {count / total:6.1%}  {kind}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
