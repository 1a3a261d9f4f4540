"""Measure every limit, or those named as arguments, and print a table; exit code 1 if any fails.

Run it on a machine with nothing else to do.
"""

from __future__ import annotations

import sys

from tabulate import tabulate

from bench.run.server import start_server
from tests.limits.limit import Limit


def main(names: list[str]) -> int:
    start_server()
    from tests.limits.checks import CHECKS  # noqa: PLC0415 - torch, while the server imports it too

    unknown = set(names) - {name for name, _ in CHECKS}
    if unknown:
        sys.stderr.write(f"no such limit: {', '.join(sorted(unknown))}\n")
        return 2
    limits: list[Limit] = []
    for name, measure in CHECKS:
        if not names or name in names:
            sys.stderr.write(f"measuring {name} ...\n")
            limits += measure()
    rows = [(one.what, one.measured, one.bar, "yes" if one.kept else "NO") for one in limits]
    sys.stdout.write(tabulate(rows, ["limit", "measured", "bar", "kept"]) + "\n")
    return 0 if all(one.kept for one in limits) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
