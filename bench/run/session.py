"""A whole run: from a suite to a folder of records."""

from __future__ import annotations

import datetime
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import Interruption, OutputError
from bench.measure.environment import collect, versions
from bench.plan.case import Machine, PlannedCase, file_name
from bench.plan.matrix import expand
from bench.plan.suite import Suite
from bench.records.environment import comparable, fingerprint
from bench.records.record import BROKEN_FLAGS, Record, RunInfo
from bench.records.store import Store, read_records, read_run
from bench.run.changes import changes
from bench.run.handover import TraceWish
from bench.run.launch import Launcher, probe_in_server
from bench.run.progress import Lines
from bench.run.rounds import Runner
from bench.run.signals import signals_raise

RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that has ended."""

    folder: Path
    interruption: Interruption | None = None
    """What stopped it before its end."""
    has_failures: bool
    """Whether any case failed, timed out, ran out of memory, or failed its proof."""


def run_suite(
    suite: Suite,
    *,
    out: Path | None,
    only: str | None,
    resume: bool,
    launches: int | None,
    scratch: Path,
    traces: Callable[[Path], TraceWish] | None = None,
) -> Finished:
    """Measure a suite. The fork server has been started.

    Args:
        suite: what to run.
        out: folder for the results; None for a new one under ``runs``.
        only: filter expression.
        resume: go on with the run in ``out``.
        launches: in place of every case's own number.
        scratch: private folder for what passes between processes.
        traces: which to leave, in the folder of the results; None for none.

    Raises:
        BenchError: something the user can put right; nothing was measured.
        Interruption: a signal arrived before anything was measured.
    """
    interruption: Interruption | None = None
    with signals_raise():
        machine = probe_in_server()
        planned = expand(suite, machine, only=only, launches=launches)
        # Who asks for a number of launches gets that number.
        budget_s = suite.budget_s if launches is None else 0.0
        folder = out or new_folder(suite.name)
        info = (
            _previous(folder, planned, machine)
            if resume
            else describe(
                _described(suite, planned, budget_s), machine, seed=secrets.randbelow(2**31)
            )
        )
        info.suite["budget_s"] = budget_s  # of a resumed run: what it may spend is what it says now
        with Store(folder, resume=resume) as store:
            before = read_records(folder) if resume else []
            store.write_run(info)
            progress = Lines(sys.stderr)
            progress.say(f"results go to {folder}")
            runner = Runner(
                launcher=Launcher(scratch, machine),
                store=store,
                run_id=info.run_id,
                environment=info.environment_fingerprint,
                progress=progress,
                traces=traces(folder) if traces is not None else None,
            )
            try:
                runner.run(planned, info.seed, before=before, budget_s=budget_s)
            except Interruption as error:
                interruption = error
            if interruption is not None or runner.records or info.ended_at is None:
                end(store, info, str(interruption or "complete"))
    return Finished(
        folder=folder,
        interruption=interruption,
        has_failures=any(map(_is_failure, [*before, *runner.records])),
    )


def _is_failure(record: Record) -> bool:
    if record.status in {"failed", "timeout", "out_of_memory"}:
        return True
    proved_wrong = record.parity is not None and record.parity.verdict == "failed"
    return proved_wrong or not BROKEN_FLAGS.isdisjoint(record.flags)


def describe(suite: dict[str, Any], machine: Machine, *, seed: int) -> RunInfo:
    """A run that begins now.

    Args:
        suite: what ``run.json`` says of what is run.
        machine: where.
        seed: of the order of launches.
    """
    environment = collect(machine)
    return RunInfo(
        run_id=secrets.token_hex(6),
        suite=suite,
        environment=environment,
        environment_fingerprint=fingerprint(environment),
        seed=seed,
        versions=versions(),
        started_at=_now(),
    )


def _described(suite: Suite, planned: Sequence[PlannedCase], budget_s: float) -> dict[str, Any]:
    return {
        "name": suite.name,
        "description": suite.description,
        "source": Path(suite.source).name,
        "budget_s": budget_s,
        "planned": _plain(planned),
    }


def _previous(folder: Path, planned: Sequence[PlannedCase], machine: Machine) -> RunInfo:
    """The run to go on with; only the same plan may, and in the same environment."""
    info = read_run(folder)
    environment = collect(machine)
    if fingerprint(environment) != info.environment_fingerprint:
        current = comparable(environment)
        try:
            then = comparable(info.environment)
        except (TypeError, AttributeError) as error:
            raise OutputError(f"{folder}: its environment cannot be read: {error}") from error
        changed = [key for key, value in current.items() if value != then[key]]
        raise OutputError(
            f"{folder}: was measured in another environment; it differs in {', '.join(changed)}"
        )
    try:
        started = msgspec.convert(info.suite.get("planned", []), list[PlannedCase])
    except msgspec.ValidationError as error:
        raise OutputError(f"{folder}: its plan cannot be read: {error}") from error
    what = changes(started, planned)
    if what:
        raise OutputError(
            f"{folder}: this is not the plan that was started there: the suite, --filter or "
            f"--launches have changed: {what}"
        )
    return info


def _plain(planned: Sequence[PlannedCase]) -> list[dict[str, Any]]:
    """As ``run.json`` gives it back: JSON has no tuples, which would differ from its lists."""
    plain: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(planned))
    return plain


def end(store: Store, info: RunInfo, by: str) -> None:
    """Note that the run is over, and what ended it."""
    info.ended_at, info.ended_by = _now(), by
    store.write_run(info)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def new_folder(name: str) -> Path:
    """A folder that no other run has, also when two start in the same second."""
    stamp = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    safe = file_name(name)
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        folder = RUNS / f"{safe}-{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise OutputError(f"{folder}: cannot be made: {error.strerror}") from error
        return folder
    raise OutputError(f"{RUNS}: a hundred runs started in one second")
