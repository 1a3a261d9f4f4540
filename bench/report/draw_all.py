"""Charts drawn several at a time, where this process can be forked. Never imports torch."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from bench.report.drawing import Chart, attempt

FEW, MOST_PROCESSES = 4, 16
"""Charts that are drawn before processes would have begun to, and processes."""


class Wanted(NamedTuple):
    """A chart to draw."""

    draw: Callable[[], Any]
    """Gives a figure, or None."""
    path: Path
    """Of its files, without their ending."""
    title: str


_wanted: Sequence[Wanted] = ()
"""In a forked process, which has what draws them without its being pickled."""


def attempt_all(wanted: Sequence[Wanted]) -> list[Chart | None]:
    """Each as ``attempt`` gives it, in their order. To be called within ``charts_in``.

    Args:
        wanted: any number of them.

    Raises:
        OSError: a file cannot be written.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(wanted) > FEW and cores > 1 and _may_fork():
        for module in ("figure", "backends.backend_agg", "backends.backend_svg"):
            importlib.import_module(f"matplotlib.{module}")  # once, and not in each process
        pool = ProcessPoolExecutor(
            min(cores, len(wanted), MOST_PROCESSES),
            multiprocessing.get_context("fork"),
            initializer=_begin,
            initargs=(wanted,),
        )
        try:
            with pool:
                return list(pool.map(_attempt, range(len(wanted))))
        except BrokenProcessPool:
            why = "a process that drew charts was killed, as where memory is short"
            warnings.warn(f"{why}: they are drawn one after the other", stacklevel=2)
    return [attempt(*one) for one in wanted]


def _may_fork() -> bool:
    """Whether a child can go on as this process would: it has one thread, and so no lock is held.

    torch keeps threads of its own. ``bench run``, which has it, draws one chart at a time.
    """
    alone = threading.active_count() == 1 and "torch" not in sys.modules
    return sys.platform == "linux" and alone


def _begin(wanted: Sequence[Wanted]) -> None:
    global _wanted  # noqa: PLW0603 - of this process alone
    _wanted = wanted
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops asking
    gc.freeze()  # what is here stays, and need not be looked at again and again


def _attempt(number: int) -> Chart | None:
    return attempt(*_wanted[number])
