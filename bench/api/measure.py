"""``compare``: measure a function's model under some strategies, from a script or a notebook."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.api.reference import reference_to
from bench.api.result import Comparison
from bench.contract import Finding, check_file
from bench.doctor import warnings_of_timing
from bench.errors import BenchError, Interruption, OutputError
from bench.plan import own
from bench.plan.suite import Suite, parse_suite
from bench.report.page import load, write_report
from bench.run.scratch import scratch
from bench.run.server import start_server, stop_server
from bench.run.session import run_suite
from bench.run.signals import WANTED

Strategies = Sequence[str | Mapping[str, Any]]
DEFAULTS: Mapping[str, Any] = {
    "launches": 3,
    "warmup_steps": 3,  # past DDP's rebuild of its buckets
    "window": {"min_steps": 4, "max_s": 1, "target_interval": 0.02},
}
"""As in the suite ``quick``: enough to see large differences."""
NAME = "compare"


def compare(
    make_problem: Callable[..., Any] | str,
    *,
    strategies: Strategies = ("single", "ddp"),
    world_sizes: Sequence[int] = (1, 2),
    out: str | Path | None = None,
    cores_per_device: int = 1,
    budget_s: float = 0.0,
    **settings: Any,
) -> Comparison:
    """Measure a model under some strategies, in processes of their own, as ``bench run`` does.

    In a script no ``if __name__ == "__main__"`` is needed: other processes read it up to the line
    that compares. What stands above that line runs in each of them.

    Args:
        make_problem: returns (model, loss, batches), as ``docs/own-workload.md`` says; or a name or
            reference as a suite has it, such as ``torchvision:resnet18`` or ``vit.py:vit``.
        strategies: names, references, or mappings of one to its options, as a suite has them.
        world_sizes: numbers of devices.
        out: folder to keep the results in, with a report; none by default.
        cores_per_device: on a CPU.
        budget_s: seconds for further launches where intervals are wide.
        settings: any field of a suite's block, such as ``launches=5`` or ``precision="bf16-amp"``.

    Raises:
        BenchError: something that the caller can put right; nothing was measured.
        KeyboardInterrupt: the run was interrupted; what was measured is in ``out``, if given.
    """
    _require_place()
    with scratch() as private:
        reference, folder = (
            (make_problem, Path.cwd())
            if isinstance(make_problem, str)
            else reference_to(make_problem, private)
        )
        block = {
            **DEFAULTS,
            **settings,
            "workloads": [reference],
            "strategies": [one if isinstance(one, str) else dict(one) for one in strategies],
            "world_sizes": list(world_sizes),
        }
        suite = _suite(block, cores_per_device=cores_per_device, budget_s=budget_s)
        suite = msgspec.structs.replace(suite, given_in=str(folder), given_by=NAME)
        place = Path(out) if out is not None else private / "results"
        _measure(suite, place, private)
        run, records, rows = load(place)
        if out is not None:
            _report(place)
    return Comparison(
        run=run,
        records=tuple(records),
        rows=tuple(rows),
        folder=Path(out) if out is not None else None,
    )


def _measure(suite: Suite, place: Path, private: Path) -> None:
    for line in warnings_of_timing():
        sys.stderr.write(f"{line}\n")
    with _main_left_alone(), _handlers_restored():
        start_server()
        try:
            finished = run_suite(
                suite, out=place, only=None, resume=False, launches=None, scratch=private
            )
            interruption = finished.interruption
        except Interruption as error:
            interruption = error
        finally:
            stop_server()
    if interruption is not None:
        raise _as_python_has_it(interruption)


def _report(place: Path) -> None:
    """Beside the records, which are there whatever becomes of it."""
    try:
        write_report(place)
    except OutputError as error:
        warnings.warn(f"no report: {error}", stacklevel=3)


def check(path: str | Path) -> list[Finding]:
    """What is right and wrong with a strategy or workload of one's own, as ``bench check`` says.

    Args:
        path: of the file, with ``:NAME`` for one thing of it.

    Raises:
        BenchError: there is nothing to check.
    """
    _require_place()
    with _main_left_alone():
        return check_file(str(path))


def _suite(block: dict[str, Any], **top: Any) -> Suite:
    try:
        text = yaml.safe_dump({"name": NAME, **top, "matrix": [block]}, sort_keys=False)
    except yaml.YAMLError as error:
        raise BenchError(f"{NAME}: settings are plain values, as in a suite: {error}") from error
    return parse_suite(text, source=NAME)


def _require_place() -> None:
    """Where this is called from.

    Raises:
        ReachedError: a script that was to be imported has come to the line that compares.
        BenchError: processes cannot be started from here.
    """
    if own.is_loading():
        raise own.ReachedError
    if multiprocessing.parent_process() is not None:
        raise BenchError("processes are compared by the main process alone, and this is another")
    if threading.current_thread() is not threading.main_thread():
        raise BenchError(
            "call it from the main thread: processes live as long as what started them"
        )


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Keep processes that are started meanwhile from running the caller's script first.

    multiprocessing has each of them import the main module anew, which would call ``compare`` again
    where no ``if __name__ == "__main__"`` stands before it.
    """
    main = sys.modules["__main__"]
    blank = types.ModuleType("__main__")
    blank.__spec__ = None
    sys.modules["__main__"] = blank
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _handlers_restored() -> Iterator[None]:
    """A run that was interrupted leaves its handlers in place, for a program that then ends."""
    before = {number: signal.getsignal(number) for number in WANTED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_python_has_it(interruption: Interruption) -> BaseException:
    if interruption.signum == signal.SIGINT:
        return KeyboardInterrupt()
    return SystemExit(interruption.exit_code)
