from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from bench.analyze.scaling import rows_of
from bench.plan.case import Case, Effort
from bench.records.record import BatchTrial, MaxBatch, Memory, Record
from bench.report.page import markdown
from bench.report.tables import tables_of
from bench.run.batch_search import RESOLUTION, Found, Trial, find_max_batch, obstacle, search
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from tests.analyze.test_scaling import timing
from tests.fakes import SHORT, make_case
from tests.report.test_page import make_info


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 31, 64, 100, 1000, 12345])
@pytest.mark.parametrize("start", [1, 8, 5000])
def test_the_search_ends_within_its_resolution_of_the_truth(limit: int, start: int) -> None:
    tried: list[int] = []

    def attempt(batch: int) -> Trial:
        tried.append(batch)
        return "fits" if batch <= limit else "too_large"

    found = search(attempt, start=start)
    assert found is not None
    assert found.largest is not None
    assert found.too_large is not None
    assert found.largest <= limit < found.too_large
    assert found.too_large - found.largest <= max(1, found.largest // RESOLUTION)
    assert len(set(tried)) == len(tried)
    assert len(tried) <= 2 * math.log2(max(limit, start) + 1) + 7


def test_what_does_not_fit_at_all_and_what_always_fits() -> None:
    assert search(lambda _: "too_large", start=8) == Found(largest=None, too_large=1)
    assert search(lambda _: "too_large", start=8, least=2) == Found(largest=None, too_large=2)
    everything = search(lambda _: "fits", start=8)
    assert everything is not None
    assert everything.too_large is None
    assert search(lambda batch: "fits" if batch < 9 else "broken", start=8) is None


def _launched(case: Case, limit: int, **changes: Any) -> Record:
    fits = case.per_device_batch <= limit
    memory = Memory(
        peak_allocated_bytes=[None],
        peak_reserved_bytes=[None],
        peak_driver_bytes=[None],
        peak_process_bytes=[min(case.per_device_batch, limit) * 1000],
    )
    record = timing(case, 1.0)
    return msgspec.structs.replace(
        record,
        pass_="max_batch",
        status="ok" if fits else "out_of_memory",
        reason=None if fits else "no memory",
        timing=None,
        throughput=None,
        memory=memory,
        **changes,
    )


def test_one_record_tells_of_every_batch_that_was_tried() -> None:
    case = make_case(strategy="ddp", world_size=2, per_device_batch=4, global_batch=8)
    record = find_max_batch(case, lambda one: _launched(one, 10), limit_gib=0.5, least=1)
    assert record.status == "ok"
    assert record.reason is None
    assert record.case == case
    found = record.max_batch
    assert found is not None
    assert (found.per_device_batch, found.too_large) == (10, 11)
    assert found.memory_limit_bytes == 2**29
    assert [(one.per_device_batch, one.fits) for one in found.trials] == [
        (4, True),
        (8, True),
        (16, False),
        (12, False),
        (10, True),
        (11, False),
    ]
    assert found.trials[-1].peak_bytes == [10_000]  # reached before it failed
    assert record.memory is not None
    assert record.memory.peak_process_bytes == [10_000]


def test_a_launch_that_fails_otherwise_ends_the_search_with_its_reason() -> None:
    case = make_case(per_device_batch=4, global_batch=4)

    def launch(one: Case) -> Record:
        if one.per_device_batch < 16:
            return _launched(one, 100)
        return msgspec.structs.replace(_launched(one, 100), status="failed", reason="it raises")

    record = find_max_batch(case, launch, limit_gib=None, least=1)
    assert (record.status, record.reason) == ("failed", "with a batch of 16: it raises")
    assert record.case == case
    assert record.max_batch is None


def test_what_cannot_be_searched_says_why() -> None:
    limited = Effort(find_max_batch=True, memory_limit_gib=1.0)
    case = make_case(world_size=2)
    assert obstacle(case, limited, 8 * 2**30) is None
    assert "memory_limit_gib" in str(obstacle(case, Effort(find_max_batch=True), 8 * 2**30))
    assert "2 x 1 GiB are more" in str(obstacle(case, limited, 2**30))
    strong = make_case(world_size=2, scaling="strong")
    assert "scaling: weak" in str(obstacle(strong, limited, 8 * 2**30))
    compiled = make_case(world_size=2, compile="default")
    assert "compile: none" in str(obstacle(compiled, limited, 8 * 2**30))
    accelerator = make_case(world_size=2, device="cuda")
    assert obstacle(accelerator, Effort(find_max_batch=True), 8 * 2**30) is None


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_real_ranks_run_out_of_a_limited_memory(launcher: Launcher, strategy: str) -> None:
    case = make_case(strategy=strategy, world_size=2, per_device_batch=256, global_batch=512)
    case = msgspec.structs.replace(case, options={})
    effort = msgspec.structs.replace(SHORT, find_max_batch=True, memory_limit_gib=0.15)

    def launch(one: Case) -> Record:
        assignment, outcomes = launcher.launch_case(one, effort, "max_batch", launch=0, processes=2)
        return to_record(assignment, outcomes, run_id="r", environment="e", units=("token", 1))

    record = find_max_batch(case, launch, limit_gib=0.15, least=1)
    assert record.status == "ok", record.reason
    found = record.max_batch
    assert found is not None
    assert found.per_device_batch is not None
    assert found.too_large is not None
    assert 8 <= found.per_device_batch < found.too_large
    peaks = {one.per_device_batch: one.peak_bytes for one in found.trials}
    # The process that ran out of memory says how far it had come; its peers were ended.
    assert any(peak is not None for peak in peaks[found.too_large])
    assert all(peaks[found.per_device_batch])


def test_the_report_has_a_table_of_largest_batches() -> None:
    ddp = make_case(strategy="ddp", world_size=2)
    fsdp = make_case(strategy="fsdp", world_size=2)
    searched = msgspec.structs.replace(
        timing(ddp, 1.0),
        pass_="max_batch",
        timing=None,
        throughput=None,
        max_batch=MaxBatch(
            per_device_batch=176,
            too_large=180,
            memory_limit_bytes=2**30,
            trials=[BatchTrial(per_device_batch=176, fits=True, peak_bytes=[2**30, 2**29])],
        ),
    )
    refused = msgspec.structs.replace(
        timing(fsdp, 1.0), pass_="max_batch", status="skipped", reason="set memory_limit_gib"
    )
    rows = rows_of([], [timing(ddp, 1.0), timing(fsdp, 1.0), searched, refused])
    text = markdown(make_info(), [], tables_of(rows))
    line = next(one for one in text.splitlines() if "| 176 |" in " ".join(one.split()))
    assert [cell.strip() for cell in line.split("|")][3:8] == [
        "176",
        "352",
        "180",
        "1.00",
        "1.00 / 0.500",
    ]
    assert "set memory\\_limit\\_gib" in text
    assert "Largest batch per device" not in markdown(
        make_info(), [], tables_of(rows_of([], [timing(ddp, 1.0)]))
    )
