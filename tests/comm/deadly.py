"""A rank that kills itself in its second point."""

from __future__ import annotations

import os
import signal
from typing import Any

from bench.comm import rank

MEASURE = rank.measure


def main(assignment_file: str) -> None:
    """See ``bench.comm.rank.main``."""
    rank.measure = _measure
    rank.main(assignment_file)


def _measure(point: Any, number: int, device: Any, place: Any) -> Any:
    if number == 1 and place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return MEASURE(point, number, device, place)
