from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from bench.plan.registry import find_workload
from bench.predict.buckets import assign, layout, limits
from bench.records.store import read_records
from bench.report.index import newest
from workloads.base import Build

MIB = 2**20
RESULTS = Path(__file__).parents[2] / "results"
EIGHT = [4 * MIB] * 8
"""Gradients of eight square layers of 1,024, as torch's own report of them was read."""


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [4, 28]),
        ({"bucket_cap_mb": 25}, [28, 4]),
        ({"bucket_cap_mb": 1}, [4] * 8),
        ({"bucket_cap_mb": 4}, [4] * 8),
        ({"bucket_cap_mb": 0.001}, [4] * 8),
        ({"bucket_cap_mb": 5}, [8] * 4),
        ({"bucket_cap_mb": 100}, [32]),
        ({"bucket_cap_mb_list": [1, 8]}, [4, 8, 8, 8, 4]),
    ],
)
def test_layouts_are_those_that_torch_reports(options: dict[str, object], sizes: list[int]) -> None:
    found = layout(EIGHT, options)
    assert [sum(EIGHT[one] for one in bucket) // MIB for bucket in found] == sizes
    assert list(itertools.chain(*found)) == list(range(8))


def test_a_search_for_unused_parameters_keeps_the_first_layout() -> None:
    # Laid out from the model's first parameter on: 4 MiB there, 28 behind; sent last first.
    found = layout(EIGHT, {"find_unused_parameters": True})
    assert [len(bucket) for bucket in found] == [7, 1]
    assert found == [[0, 1, 2, 3, 4, 5, 6], [7]]
    static = layout(EIGHT, {"find_unused_parameters": True, "static_graph": True})
    assert [len(bucket) for bucket in static] == [1, 7]


def test_what_is_left_is_a_bucket() -> None:
    assert assign([1, 1, 1], [2]) == [[0, 1], [2]]
    assert assign([], [2]) == []
    assert limits({"bucket_cap_mb_list": [0.5, 2]}) == [MIB // 2, 2 * MIB]


def test_recorded_layouts_of_a_transformer_are_predicted_to_the_byte() -> None:
    workload = find_workload("transformer")
    preset = workload.presets["cpu"]
    build = Build(
        device=torch.device("cpu"),
        dtype=torch.float32,
        seed=0,
        per_device_batch=1,
        optimizer="adamw",
    )
    problem = workload.build(preset.options, build)
    sizes: list[int] = []
    for parameter in problem.model.parameters():
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda one: sizes.append(one.nbytes)
        )
    batch = next(problem.batches(0, 1))
    problem.loss(problem.model(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
    seen = 0
    folder = newest("ddp-buckets", RESULTS)
    assert folder is not None, "it is published"
    for record in read_records(folder):
        known = record.communication and record.communication.bucket_bytes
        if known and record.case.workload == "transformer" and record.case.strategy == "ddp":
            found = layout(sizes, record.case.options)
            assert [sum(sizes[one] for one in bucket) for bucket in found] == known
            seen += 1
    assert seen > 5
