"""Predictions in a child process: by arithmetic, and against those that are stored."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from bench.plan.case import Case
from bench.predict.memory_child import Question, ask
from bench.records.prediction import PredictedMemory, ScoredMemory
from bench.report.memory_score import load_score
from tests.fakes import make_case
from tests.memory_prediction import STORED
from workloads.base import Batch, Facts, Options, Preset, Problem, Workload

PARAMETERS = 118_528
"""Of the smallest transformer: 2 blocks of 49,984, tables of 256 x 64 and 32 x 64, a norm."""
WIDTH = 4096
FP32 = 4


class Curious(nn.Module):
    """Looks at its data, which those without any have not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs) if inputs.sum().item() > 0 else self.layer(-inputs)
        return output


def _problem(model: nn.Module, width: int, samples: int) -> Problem:
    def batches(_: int | None, __: int) -> Any:
        while True:
            yield Batch((torch.ones(samples, width),), torch.zeros(samples))

    return Problem(
        model=model,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda output, _: output.sum(),
        batches=batches,
        shard_units=lambda _: [],
    )


def _workload(name: str, make: Any, width: int) -> Workload:
    return Workload(
        name=name,
        summary="for these tests",
        options=Options,
        presets={"only": Preset(options=Options(), per_device_batch=1, summary="one")},
        optimizer="sgd",
        facts=lambda _: Facts(unit="sample"),
        build=lambda _, build: _problem(make().to(build.dtype), width, build.per_device_batch),
    )


CURIOUS = _workload("curious", Curious, 2)
WIDE = _workload("wide", lambda: nn.Linear(WIDTH, WIDTH, bias=False), WIDTH)


def wide(strategy: str, world_size: int, **changes: Any) -> Case:
    """A layer of 64 MiB, beside which nothing weighs anything: its peak can be told in the head."""
    return make_case(
        workload="tests.predict.test_memory_child:WIDE",
        preset="only",
        workload_options={},
        optimizer="sgd",
        strategy=strategy,
        world_size=world_size,
        per_device_batch=1,
        global_batch=world_size,
        **changes,
    )


def stored() -> list[ScoredMemory]:
    """Rows of one small model; ``nox -s predict-memory`` is for all."""
    wanted = ("embedding", "tiny", "sgd")
    return [
        row
        for row in load_score(STORED).rows
        if (row.case.workload, row.case.preset, row.case.optimizer) == wanted
    ]


@pytest.fixture(scope="module")
def found() -> dict[str, PredictedMemory]:
    """All that these tests ask, of one child."""
    cases = {
        "single": make_case(),
        "ddp": make_case(strategy="ddp", world_size=64),
        "fsdp": make_case(strategy="fsdp", world_size=64),
        "zero": make_case(strategy="zero", world_size=2),
        "cuda": make_case(device="cuda", optimizer="adamw"),
        "wide": wide("single", 1),
        "wide ddp": wide("ddp", 2),
        "wide views": wide("ddp", 2, options={"gradient_as_bucket_view": True}),
        "wide bf16": wide("ddp", 2, options={"comm_hook": "bf16"}),
        "wide levels": wide("ddp", 4, nodes=2, options={"comm_hook": "hierarchical"}),
        "wide levels on devices": wide(
            "ddp",
            4,
            nodes=2,
            options={"comm_hook": "hierarchical"},
            device="cuda",
            backend="nccl",
        ),
        "wide fsdp": wide("fsdp", 4),
        "curious": make_case(
            workload="tests.predict.test_memory_child:CURIOUS", preset="only", workload_options={}
        ),
    }
    cases |= {row.case.id: row.case for row in stored()}
    answers = ask(
        [
            Question(case=case, limit_bytes=2**28 if name == "wide" else None)
            for name, case in cases.items()
        ]
    )
    return dict(zip(cases, answers, strict=True))


def test_what_always_lives_is_counted(found: dict[str, PredictedMemory]) -> None:
    single = found["single"].by_category
    assert single["parameters"] == FP32 * PARAMETERS
    assert single["optimizer_state"] >= 2 * FP32 * PARAMETERS  # and a step for each parameter
    assert sum(single.values()) == found["single"].peak_bytes


def test_ddp_adds_its_buckets(found: dict[str, PredictedMemory]) -> None:
    assert found["ddp"].by_category["buckets"] == FP32 * PARAMETERS
    pairs = (found["ddp"].peak_bytes, found["single"].peak_bytes)
    assert None not in pairs
    assert math.isclose(pairs[0] - pairs[1], FP32 * PARAMETERS, abs_tol=64)  # type: ignore[operator]


def test_shards_are_shared_out(found: dict[str, PredictedMemory]) -> None:
    fsdp, zero = found["fsdp"].by_category, found["zero"].by_category
    assert FP32 * PARAMETERS / 64 <= fsdp["parameters"] <= FP32 * PARAMETERS / 32  # rounded up
    assert zero["parameters"] == FP32 * PARAMETERS
    assert FP32 * PARAMETERS <= zero["optimizer_state"] <= 1.1 * FP32 * PARAMETERS


def layers(row: PredictedMemory) -> float:
    """Peak in sizes of the wide layer."""
    assert row.peak_bytes is not None, row.reason
    return row.peak_bytes / (FP32 * WIDTH**2)


def test_the_peak_is_a_maximum_over_time(found: dict[str, PredictedMemory]) -> None:
    # Weight and gradient; with DDP its bucket; as a view of it the gradient lives a moment only,
    # which is the peak all the same; what a bf16 hook sends is half a layer, when all others live.
    assert layers(found["wide"]) == pytest.approx(2, rel=0.01)
    assert layers(found["wide ddp"]) == pytest.approx(3, rel=0.01)
    assert layers(found["wide views"]) == pytest.approx(3, rel=0.01)
    assert layers(found["wide bf16"]) == pytest.approx(3.5, rel=0.01)
    # Level by level: over gloo beside the bucket what other ranks of the host have sent of it.
    assert layers(found["wide levels"]) == pytest.approx(4, rel=0.01)
    assert layers(found["wide levels on devices"]) == pytest.approx(3, rel=0.01)
    # A quarter of weight and gradient; the whole gradient, a copy to scatter, gloo's copy of that.
    assert layers(found["wide fsdp"]) == pytest.approx(3.5, rel=0.01)


def test_an_accelerators_rules_are_used(found: dict[str, PredictedMemory]) -> None:
    cuda = found["cuda"]
    assert cuda.peak_bytes is not None
    assert cuda.peak_bytes % 512 == 0
    assert cuda.peak_bytes >= (found["single"].peak_bytes or 0)


def test_the_largest_batch_is_between_two(found: dict[str, PredictedMemory]) -> None:
    batch = found["wide"].max_batch
    assert batch is not None
    assert batch.per_device_batch is not None
    assert batch.too_large is not None
    # Of 256 MiB, weight and gradient leave half; a sample has 16 KiB of input, and of output.
    assert 1000 < batch.per_device_batch < batch.too_large <= 8192
    assert batch.too_large <= 1.04 * batch.per_device_batch


def test_what_reads_its_data_is_answered_in_words(found: dict[str, PredictedMemory]) -> None:
    assert found["curious"].peak_bytes is None
    assert "tensors without data" in (found["curious"].reason or "")


def test_nothing_of_it_stays_in_this_process(found: dict[str, PredictedMemory]) -> None:
    assert found
    assert not distributed.is_initialized()


def test_the_stored_score_is_of_this_model(found: dict[str, PredictedMemory]) -> None:
    made_with = load_score(STORED).torch
    if made_with != torch.__version__.partition("+")[0]:
        pytest.skip(f"the score was made with torch {made_with}")
    rows = stored()
    assert len(rows) >= 3
    for row in rows:
        assert found[row.case.id].peak_bytes == row.predicted_bytes, "run nox -s predict-memory"
