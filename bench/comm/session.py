"""A whole sweep: from what is asked for to a folder of rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bench.comm import rank, rows
from bench.comm.sweep import Group, Planned, Point, Sweep, plan
from bench.errors import Interruption, in_words
from bench.measure.device import core_sets, visible_devices
from bench.plan.case import Limits
from bench.records.collectives import COLLECTIVES, Collective, Limit
from bench.records.record import RunInfo
from bench.records.store import Store
from bench.run.elastic import read_outcomes, run_elastic
from bench.run.handover import RankOutcome
from bench.run.launch import Launcher, probe_in_server
from bench.run.loopback import loopback_variables
from bench.run.progress import Lines, duration
from bench.run.session import Finished, describe, end, environment_of, new_folder
from bench.run.signals import signals_raise
from bench.run.watch import Watch

NAME = "comm"
LAUNCH_S = 1800.0
"""For all sizes of one operation."""
LIMITS_OF = (1, 2)
"""Ranks for which the machine's limits are measured."""


def run_sweep(sweep: Sweep, *, out: Path | None, scratch: Path, progress: Lines) -> Finished:
    """Measure collectives alone. The fork server has been started.

    Args:
        sweep: what is asked for.
        out: folder for the rows; None for a new one under ``runs``.
        scratch: private folder for what passes between processes.
        progress: for people.

    Raises:
        BenchError: something the user can put right; nothing was measured.
        Interruption: a signal arrived before anything was measured.
    """
    with signals_raise():
        machine = probe_in_server()
        planned = plan(sweep, machine)
        folder = out or new_folder(NAME)
        info = describe(
            {"name": NAME, "description": "Collectives alone.", "planned": []},
            environment_of(machine, None, None),
            seed=0,
        )
        failed = False
        interruption: Interruption | None = None
        with Store(folder, name=COLLECTIVES) as store:
            store.write_run(info)
            progress.say(f"results go to {folder}")
            launcher = Launcher(scratch, machine)
            try:
                _measure_limits(launcher, planned, info)
                store.write_run(info)
                for row in _measured(launcher, planned, info.run_id, progress):
                    failed |= row.status not in {"ok", "skipped"}
                    store.append(row)
            except Interruption as error:
                interruption = error
            end(store, info, str(interruption or "complete"))
    return Finished(folder=folder, interruption=interruption, has_failures=failed)


def _measure_limits(launcher: Launcher, planned: Sequence[Planned], info: RunInfo) -> None:
    """Of what one rank, and two at once, can do; a limit that cannot be measured is none."""
    found: list[Limit] = []
    groups = [one.group for one in planned if one.skip_reason is None]
    for size in LIMITS_OF:
        group = next((one for one in groups if one.world_size == size), None)
        if group is not None:
            outcomes = _launch(launcher, group, [])
            found += outcomes[0].limits
    info.suite["limits"] = msgspec.to_builtins(found)


def _measured(
    launcher: Launcher, planned: Sequence[Planned], run_id: str, progress: Lines
) -> Iterable[Collective]:
    """Rows in the order of the plan; the sizes of one operation share their processes."""
    begin, done = time.monotonic(), 0
    for (group, op), points in itertools.groupby(planned, lambda one: (one.group, one.point.op)):
        every = list(points)
        wanted = [one for one in every if one.skip_reason is None]
        outcomes: tuple[RankOutcome, ...] = ()
        trouble: str | None = None
        if wanted:
            try:
                outcomes = _launch(launcher, group, [one.point for one in wanted])
            except Interruption:
                raise
            except Exception as error:  # noqa: BLE001 - no fault of one group may lose the others
                trouble = in_words(error)
        numbers = itertools.count()
        for one in every:
            if one.skip_reason is not None:
                yield rows.skipped(one, run_id=run_id)
            elif trouble is not None:
                yield rows.failed(one, trouble, run_id=run_id)
            else:
                yield rows.row_of(one, next(numbers), outcomes, run_id=run_id)
        done += len(every)
        spent_s = time.monotonic() - begin
        progress.say(
            f"[{done}/{len(planned)}] {op} x{group.world_size} over {group.backend}  "
            f"{duration(spent_s)}"
        )


def _launch(launcher: Launcher, group: Group, points: Sequence[Point]) -> tuple[RankOutcome, ...]:
    """Carry out points in fresh processes; returns one outcome for each rank."""
    with launcher.folder() as folder:
        cores = core_sets(
            launcher.machine, cores_per_device=group.cores_per_device, devices=group.world_size
        )
        assignment = rank.CommAssignment(
            group=group,
            points=list(points),
            folder=str(folder),
            cores=tuple(cores),
            environment=dict(visible_devices(group, launcher.machine)) | loopback_variables(),
            launch_s=LAUNCH_S,
        )
        file = folder / "assignment.json"
        file.write_bytes(msgspec.json.encode(assignment))
        watch = Watch(group.world_size, Limits(), LAUNCH_S, folder)
        ends = run_elastic(rank.main, file, watch)
        return read_outcomes(folder, group.world_size, ends)
