"""A timing pass through a loader, on real processes over gloo."""

from __future__ import annotations

import os

import msgspec
import psutil

from bench.measure.machine import SHARED_MEMORY
from bench.records.record import Input
from bench.run.handover import RankOutcome
from bench.run.input import all_input, cpu_s, use_of
from bench.run.launch import Launcher
from bench.run.segments import note_worker
from tests.fakes import make_case
from tests.run.test_passes import run
from tests.strategies.test_contract import planned_case
from tests.workloads.data.test_feed import feed_of
from workloads.data.host import HostOptions

USED = Input(samples=8, trained=8, padded=0, dropped=0, epochs=1, batch_bytes=16)


def test_a_timed_step_loads_and_nothing_is_left(launcher: Launcher) -> None:
    data = "{host: {workers: 1, samples: 101, persistent_workers: true}}"
    case = planned_case("transformer:tiny", "ddp", 2, data=data)
    record, outcomes = run(launcher, case, "timing")
    found = record.input
    assert found is not None
    # 51 samples a rank, in 12 batches of 4
    assert (found.samples, found.trained, found.padded, found.dropped) == (101, 96, 0, 5)
    assert found.batch_bytes == 2 * 4 * 32 * 8
    assert record.placement is not None
    assert found.worker_cores == [one.cores for one in record.placement]
    assert not {"duplicate_data", "ranks_differ"} & set(record.flags)
    assert record.phases is not None
    assert record.phases.data_s > 0
    digests = [digest for one in outcomes for digest in one.batch_digests]
    assert len(set(digests)) == len(digests) == 6
    workers = [one for one in psutil.process_iter(["name"]) if one.info["name"] == "pt_data_worker"]
    ours = {one.pid for one in psutil.Process().children(recursive=True)}
    assert not [one for one in workers if one.pid in ours]


def test_segments_of_killed_workers_are_removed_and_no_others(launcher: Launcher) -> None:
    others = SHARED_MEMORY / f"torch_{os.getpid()}0_1_0"
    others.touch()
    left = SHARED_MEMORY / f"torch_{os.getpid()}_1_0"
    try:
        with launcher.folder() as folder:
            note_worker(folder)  # as a worker that is killed when it has made a segment
            left.touch()
        assert not left.exists()
        assert others.exists()
    finally:
        others.unlink()


def test_all_processes_together_say_where_their_workers_ran() -> None:
    case = make_case(data="host", data_options={"workers": 1}, data_label="host")
    outcomes = [
        RankOutcome(rank=rank, input=msgspec.structs.replace(USED, worker_cores=[[rank]]))
        for rank in range(2)
    ]
    joined = all_input(case, outcomes)
    assert joined == msgspec.structs.replace(USED, worker_cores=[[0], [1]])
    assert all_input(case, [RankOutcome(rank=0, input=USED)]) == USED
    assert all_input(make_case(), [RankOutcome(rank=0)]) is None


def test_the_time_of_workers_counts_while_they_live_and_afterwards() -> None:
    with feed_of(HostOptions(samples=10**6, workers=1)) as feed:
        next(feed)
        assert use_of(feed).worker_cores == [sorted(os.sched_getaffinity(0))]
        begin = cpu_s(feed)
        for _ in range(10**5):
            next(feed)
            if feed.begun > 1 or cpu_s(feed) >= begin + 0.05:
                break
        alive = cpu_s(feed)
        assert alive >= begin + 0.05
    assert cpu_s(feed) >= alive, "its parent has its count"


def test_without_a_loader_no_workers_use_the_cpu() -> None:
    assert cpu_s(None) == 0.0
