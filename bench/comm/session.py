"""A whole sweep: from what is asked for to a folder of rows."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from bench.comm import rank, rows
from bench.comm.progress import Following
from bench.comm.sweep import BRIEF, Group, Planned, Point, Sweep, can_send, is_brief, plan
from bench.errors import Interruption, in_words
from bench.measure.device import core_sets, visible_devices
from bench.plan.case import Limits
from bench.records.collectives import COLLECTIVES, Collective, Limit, Pairs
from bench.records.record import RunInfo
from bench.records.store import Store
from bench.run.alike import facts_of
from bench.run.culprit import find_culprit, reason_of
from bench.run.elastic import read_outcomes, run_elastic
from bench.run.handover import OtherShare, RankOutcome
from bench.run.hosts import Hosts
from bench.run.launch import Launcher, probe_in_server
from bench.run.loopback import loopback_variables, outward_variables
from bench.run.meet import meeting
from bench.run.progress import Lines, duration
from bench.run.rendezvous import Rendezvous
from bench.run.session import Finished, Lab, describe, end, environment_of, new_folder
from bench.run.signals import signals_raise
from bench.run.watch import Watch

NAME = "comm"
LAUNCH_S = 1800.0
"""For all sizes of one operation."""
NUMBERS = itertools.count(1)
"""Of launches, of this process."""
LIMITS_OF = (1, 2)
"""Ranks for which the machine's limits are measured."""


def run_sweep(
    sweep: Sweep,
    *,
    out: Path | None,
    scratch: Path,
    progress: Lines,
    rendezvous: Rendezvous | None = None,
    lab: Lab | None = None,
) -> Finished:
    """Measure collectives alone. The fork server has been started.

    Args:
        sweep: what is asked for.
        out: folder for the rows; None for a new one under ``runs``.
        scratch: private folder for what passes between processes.
        progress: for people.
        rendezvous: where the other hosts come to, of which this one is node 0; None for none.
        lab: whose hosts these are; None for real ones.

    Raises:
        BenchError: something the user can put right; nothing was measured.
        Interruption: a signal arrived before anything was measured.
    """
    with signals_raise(), contextlib.ExitStack() as stack:
        machine = probe_in_server()
        hosts: Hosts | None = None
        if rendezvous is not None:
            own = facts_of(None, machine)
            hosts = stack.enter_context(meeting(rendezvous, own, progress.say, lab))
            machine = msgspec.structs.replace(machine, hosts=rendezvous.nodes)
        if lab is not None:
            machine = msgspec.structs.replace(machine, emulated=True)
            sweep = msgspec.structs.replace(sweep, links=lab.rates() or (None,))
        info = describe(
            {"name": NAME, "description": "Collectives alone.", "planned": []},
            environment_of(machine, hosts, lab),
            seed=0,
        )
        launcher = Launcher(scratch, machine, hosts)
        folder = out or new_folder(NAME)
        if is_brief(sweep, machine):
            progress.say(BRIEF)
        return _carried_out(plan(sweep, machine), launcher, info, folder, progress)


def _carried_out(
    planned: Sequence[Planned], launcher: Launcher, info: RunInfo, folder: Path, progress: Lines
) -> Finished:
    failed = False
    interruption: Interruption | None = None
    with Store(folder, name=COLLECTIVES) as store:
        store.write_run(info)
        progress.say(f"results go to {folder}")
        try:
            _measure_limits(launcher, planned, info)
            _measure_pairs(launcher, planned, info, progress)
            store.write_run(info)
            for row in _measured(launcher, planned, info.run_id, progress):
                failed |= row.status not in {"ok", "skipped"}
                store.append(row)
        except Interruption as error:
            interruption = error
            if launcher.hosts is not None:
                launcher.hosts.end(f"stopped by {error}", error.exit_code)
        end(store, info, str(interruption or "complete"))
    return Finished(folder=folder, interruption=interruption, has_failures=failed)


def _measure_limits(launcher: Launcher, planned: Sequence[Planned], info: RunInfo) -> None:
    """Of what one rank, and two at once, can do; a limit that cannot be measured is none."""
    found: list[Limit] = []
    groups = [one.group for one in planned if one.skip_reason is None]
    for size in LIMITS_OF:
        group = next((one for one in groups if (one.world_size, one.nodes) == (size, 1)), None)
        if group is not None:
            outcomes = _launch(launcher, group, [])
            found += outcomes[0].limits
    info.suite["limits"] = msgspec.to_builtins(found)


def _measure_pairs(
    launcher: Launcher, planned: Sequence[Planned], info: RunInfo, progress: Lines
) -> None:
    """Of the most ranks on the most hosts: each pair, over each backend and link."""
    groups = [
        one.group
        for one in planned
        if one.skip_reason is None and one.group.nodes > 1 and can_send(one.group)
    ]
    most = max((one.world_size for one in groups), default=0)
    found: list[Pairs] = []
    for group in dict.fromkeys(one for one in groups if one.world_size == most):
        outcomes = _launch(launcher, group, [], pairs=True)
        culprit = find_culprit(outcomes)
        if culprit is not None:
            progress.say(f"pairs over {group.backend}: {reason_of(culprit, outcomes)}")
            continue
        found.append(
            Pairs(
                backend=group.backend,
                hosts=[str(one.host) for one in outcomes],
                pairs=[pair for one in outcomes for pair in one.pairs],
                link=group.link,
            )
        )
    info.suite["pairs"] = msgspec.to_builtins(found)


def _measured(
    launcher: Launcher, planned: Sequence[Planned], run_id: str, progress: Lines
) -> Iterable[Collective]:
    """Rows in the order of the plan; the sizes of one operation share their processes."""
    begin, done = time.monotonic(), 0
    for (group, op), same in itertools.groupby(planned, lambda one: (one.group, one.point.op)):
        every = list(same)
        wanted = [one for one in every if one.skip_reason is None]
        outcomes: tuple[RankOutcome, ...] = ()
        trouble: str | None = None
        if wanted:
            try:
                points = [one.point for one in wanted]
                outcomes = _launch(launcher, group, points, say=progress.say)
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
            f"[{done}/{len(planned)}] {op} x{group.world_size} over {group.backend}"
            f"{_place(group)}  "
            f"{duration(spent_s)}"
        )


def _place(group: Group) -> str:
    words = f" on {group.nodes} hosts" if group.nodes > 1 else ""
    return words + (f", {group.link}" if group.link is not None else "")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What the hosts of a launch are to carry out."""

    group: Group
    points: list[Point]
    pairs: bool = False


def _launch(
    launcher: Launcher,
    group: Group,
    points: Sequence[Point],
    *,
    pairs: bool = False,
    say: Callable[[str], None] | None = None,
) -> tuple[RankOutcome, ...]:
    """Carry out points in fresh processes; returns one outcome for each rank.

    Args:
        launcher: of this host.
        group: of the ranks.
        points: none for what is measured beside them.
        pairs: measure each pair of ranks instead.
        say: takes a line for people, now and then.
    """
    task = Task(group=group, points=list(points), pairs=pairs)
    share = OtherShare(
        number=next(NUMBERS),
        nodes=group.nodes,
        processes=group.world_size // group.nodes,
        ready_s=Limits().start_s,
        limit_s=LAUNCH_S,
        link=group.link,
        content=msgspec.json.encode(task).decode(),
    )
    if launcher.hosts is None or group.nodes == 1:
        return run_share(launcher, share, lambda: False, say)
    return launcher.hosts.launch(
        share, lambda own, elsewhere: run_share(launcher, own, elsewhere, say)
    )


def run_share(
    launcher: Launcher,
    share: OtherShare,
    elsewhere: Callable[[], bool],
    say: Callable[[str], None] | None = None,
) -> tuple[RankOutcome, ...]:
    """Launch what is this host's of a task.

    Args:
        launcher: of this host.
        share: of this host.
        elsewhere: whether processes of other hosts have ended.
        say: takes a line for people, now and then; None to be silent.
    """
    task, node = msgspec.json.decode(share.content, type=Task), share.node
    group = task.group
    with launcher.folder(share.number) as folder:
        cores = core_sets(
            launcher.machine, cores_per_device=group.cores_per_device, devices=share.processes
        )
        environment = dict(visible_devices(group, launcher.machine))
        environment |= loopback_variables() if node is None else outward_variables(node.interface)
        assignment = rank.CommAssignment(
            group=group,
            points=task.points,
            folder=str(folder),
            cores=tuple(cores),
            environment=environment,
            launch_s=LAUNCH_S,
            pairs=task.pairs,
        )
        file = folder / "assignment.json"
        file.write_bytes(msgspec.json.encode(assignment))
        watch = Watch(share.processes, Limits(), LAUNCH_S, folder, elsewhere)
        following = None if say is None else Following(folder, say)
        ends = run_elastic(rank.main, file, watch, node=node, meanwhile=following)
        return read_outcomes(folder, share.processes, ends, share.first_rank)
