"""The loader of one rank: opened for its share of the samples, watched, and closed."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from bench.plan.case import Case
from bench.plan.inputs import share_of
from bench.plan.registry import find_source, find_workload
from bench.records.record import Input
from bench.run.handover import Assignment, RankOutcome
from bench.run.segments import note_worker
from bench.run.server import follow_parent
from bench.strategies.base import Strategy
from workloads.base import Build, Problem
from workloads.data.base import Asked, LoaderOptions
from workloads.data.feed import Feed, open_feed


def open_input(
    assignment: Assignment, strategy: Strategy, rank: int, problem: Problem, build: Build
) -> Feed:
    """What a rank's batches come from.

    Args:
        assignment: of the launch.
        strategy: of the case.
        rank: this one.
        problem: whose samples may be asked for.
        build: that the problem was made by.

    Raises:
        ValueError: an epoch has not one full batch for every rank.
    """
    case = assignment.case
    source = find_source(case.data)
    options = msgspec.convert(case.data_options, source.options)
    assert isinstance(options, LoaderOptions), "batches made on the device need no loader"
    workload = find_workload(case.workload)
    asked = Asked(
        facts=workload.facts(msgspec.convert(case.workload_options, workload.options)),
        own=problem.samples,
        at_once=case.per_device_batch * case.world_size,
        seed=case.seed,
        place=None if assignment.data_place is None else Path(assignment.data_place),
        scratch=Path(assignment.data_folder),
    )
    return open_feed(
        source,
        options,
        asked,
        share_of(case, strategy, rank),
        device=build.device,
        dtype=build.dtype,
        enter_worker=functools.partial(enter_worker, Path(assignment.folder)),
    )


def enter_worker(folder: Path, rank: int, worker: int) -> None:
    """In a worker: die with the rank that has started it, on its cores, and be known.

    Workers have the affinity of their rank: on a CPU the cores of its device, which compute, too.
    One that another process has started for the rank ends by torch's own watch, some seconds later.

    Args:
        folder: of the launch.
        rank: its process id.
        worker: number of the worker.
    """
    del worker
    note_worker(folder)
    if os.getppid() == rank:
        follow_parent(rank)


def use_of(feed: Feed) -> Input:
    """What became of the samples so far, as one process tells; its workers are alive."""
    pids = feed.workers()
    cores = _cores_of(pids)
    return Input(
        samples=feed.epoch.count,
        trained=feed.epoch.trained,
        padded=feed.epoch.padded,
        dropped=feed.epoch.dropped,
        epochs=feed.begun,
        batch_bytes=feed.batch_bytes or 0,
        worker_cores=None if cores is None else [cores],
    )


def _cores_of(pids: Sequence[int]) -> list[int] | None:
    """That any of some processes may use; None for none, or where the system does not tell."""
    if not pids or not hasattr(os, "sched_getaffinity"):
        return None
    found: set[int] = set()
    for pid in pids:
        try:
            found |= os.sched_getaffinity(pid)
        except ProcessLookupError:  # it has ended with its epoch
            continue
    return sorted(found) or None


def cpu_s(feed: Feed | None) -> float:
    """CPU time that a rank's workers have used: those that have ended, and those that are alive."""
    if feed is None:
        return 0.0
    times = os.times()
    spent = times.children_user + times.children_system
    for pid in feed.workers():
        try:
            alive = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:  # it has ended meanwhile: its parent's count has it
            continue
        spent += alive.user + alive.system
    return spent


def all_input(case: Case, outcomes: Sequence[RankOutcome]) -> Input | None:
    """What all processes of a launch say together; None for batches made on the device."""
    found = [one.input for one in outcomes if one.input is not None]
    if case.data == "device" or not found:
        return None
    cores = [core for one in found for core in one.worker_cores or ()]
    return msgspec.structs.replace(found[0], worker_cores=cores or None)
