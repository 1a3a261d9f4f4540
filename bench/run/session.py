"""A whole run: from a suite to a folder of records."""

from __future__ import annotations

import contextlib
import datetime
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bench.errors import Interruption, OutputError
from bench.measure.environment import collect, versions
from bench.plan.case import Machine, PlannedCase, file_name
from bench.plan.matrix import expand
from bench.plan.suite import Suite
from bench.plan.units import problems_in_words
from bench.records.environment import comparable, fingerprint
from bench.records.record import BROKEN_FLAGS, Record, RunInfo
from bench.records.store import Store, read_records, read_run
from bench.run.alike import described, facts_of, unlike_devices
from bench.run.changes import changes
from bench.run.checkpoint_folder import CHECKPOINTS, Checkpoints
from bench.run.handover import TraceWish
from bench.run.hosts import Hosts, Network
from bench.run.launch import Launcher, probe_in_server
from bench.run.meet import meeting
from bench.run.progress import Lines
from bench.run.rendezvous import Rendezvous
from bench.run.rounds import Runner
from bench.run.signals import signals_raise

RUNS = Path("runs")


class Lab(Network, Protocol):
    """What a run must know of the laboratory that its hosts are emulated in."""

    def applied(self, suite: Suite) -> Suite:
        """The suite with the links that the laboratory was asked for."""

    def rates(self) -> Sequence[str]:
        """Speeds of links that it was asked for."""

    def description(self) -> Mapping[str, Any]:
        """For ``run.json``: its kind, and what its links really carry."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that has ended."""

    folder: Path
    interruption: Interruption | None = None
    """What stopped it before its end."""
    has_failures: bool
    """Whether any case failed, timed out, ran out of memory, or failed its proof."""


def run_suite(  # noqa: PLR0913 - what a run is told, each known by its name
    suite: Suite,
    *,
    out: Path | None,
    only: str | None,
    resume: bool,
    launches: int | None,
    scratch: Path,
    traces: Callable[[Path], TraceWish] | None = None,
    rendezvous: Rendezvous | None = None,
    lab: Lab | None = None,
    checkpoints: Callable[[Path], Checkpoints] | None = None,
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
        rendezvous: where the other hosts come to, of which this one is node 0; None for none.
        lab: whose hosts these are; None for real ones.
        checkpoints: where they are saved, by the folder of the results; None for a folder in it,
            of which nothing stays.

    Raises:
        BenchError: something the user can put right; nothing was measured.
        Interruption: a signal arrived before anything was measured.
    """
    interruption: Interruption | None = None
    progress = Lines(sys.stderr)
    with signals_raise(), contextlib.ExitStack() as stack:
        machine = probe_in_server()
        hosts: Hosts | None = None
        if rendezvous is not None:
            own = facts_of(suite, machine)
            hosts = stack.enter_context(meeting(rendezvous, own, progress.say, lab))
            machine = msgspec.structs.replace(
                machine, hosts=rendezvous.nodes, unlike_hosts=unlike_devices(hosts.facts)
            )
        if lab is not None:
            machine = msgspec.structs.replace(machine, emulated=True)
            suite = lab.applied(suite)
        planned = expand(suite, machine, only=only, launches=launches)
        # Who asks for a number of launches gets that number.
        budget_s = suite.budget_s if launches is None else 0.0
        folder = out or new_folder(suite.name)
        info = (
            _previous(folder, planned, environment_of(machine, hosts, lab))
            if resume
            else describe(
                _described(suite, planned, budget_s),
                environment_of(machine, hosts, lab),
                seed=secrets.randbelow(2**31),
            )
        )
        info.suite["budget_s"] = budget_s  # of a resumed run: what it may spend is what it says now
        with Store(folder, resume=resume) as store:
            before = read_records(folder) if resume else []
            store.write_run(info)
            progress.say(f"results go to {folder}")
            for problem in problems_in_words(planned):
                progress.say(f"warning: {problem}")
            runner = Runner(
                launcher=Launcher(scratch, machine, hosts),
                store=store,
                run_id=info.run_id,
                environment=info.environment_fingerprint,
                progress=progress,
                traces=traces(folder) if traces is not None else None,
                checkpoints=checkpoints(folder)
                if checkpoints is not None
                else Checkpoints(folder=folder / CHECKPOINTS),
            )
            try:
                runner.run(planned, info.seed, before=before, budget_s=budget_s)
            except Interruption as error:
                interruption = error
                if hosts is not None:
                    hosts.end(f"stopped by {error}", error.exit_code)
            if interruption is not None or runner.records or info.ended_at is None:
                end(store, info, str(interruption or "complete"))
    return Finished(
        folder=folder,
        interruption=interruption,
        has_failures=any(map(is_failure, [*before, *runner.records])),
    )


def is_failure(record: Record) -> bool:
    """Whether a launch failed, or what it has shown is that something is wrong."""
    if record.status in {"failed", "timeout", "out_of_memory"}:
        return True
    proved_wrong = record.parity is not None and record.parity.verdict == "failed"
    lost = record.checkpoint is not None and record.checkpoint.verdict == "failed"
    return proved_wrong or lost or not BROKEN_FLAGS.isdisjoint(record.flags)


def environment_of(machine: Machine, hosts: Hosts | None, lab: Lab | None) -> dict[str, Any]:
    """What figures depend on beside the case: of this host, and of the others.

    Args:
        machine: this one.
        hosts: of the run, where there are several.
        lab: whose hosts they are.
    """
    environment = collect(machine)
    if hosts is not None:
        environment["hosts"] = described(hosts.facts)
    if lab is not None:
        environment["network"] = dict(lab.description())
    return environment


def describe(suite: dict[str, Any], environment: dict[str, Any], *, seed: int) -> RunInfo:
    """A run that begins now.

    Args:
        suite: what ``run.json`` says of what is run.
        environment: see ``environment_of``.
        seed: of the order of launches.
    """
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


def _previous(folder: Path, planned: Sequence[PlannedCase], environment: dict[str, Any]) -> RunInfo:
    """The run to go on with; only the same plan may, and in the same environment."""
    info = read_run(folder)
    if fingerprint(environment) != info.environment_fingerprint:
        current = comparable(environment)
        try:
            then = comparable(info.environment)
        except (TypeError, AttributeError) as error:
            raise OutputError(f"{folder}: its environment cannot be read: {error}") from error
        changed = [key for key, value in current.items() if value != then.get(key)]
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
