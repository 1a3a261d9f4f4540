"""What one device trains, and how far rounding alone moves it."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.measure.reference import (
    Reference,
    Trained,
    accumulate,
    copy_gradients,
    drift_of,
    load_reference,
    save_reference,
    step_batches,
    take_step,
    train_reference,
)
from bench.measure.spread import nudge, reordering_spread, rounding_spread, scaled_reference
from bench.plan.registry import find_workload
from workloads.base import Batch, Build, Problem

FLOAT32 = torch.finfo(torch.float32).eps


def make_problem(dtype: torch.dtype = torch.float32, batch: int = 4) -> Problem:
    workload = find_workload("transformer")
    build = Build(
        device=torch.device("cpu"), dtype=dtype, seed=0, per_device_batch=batch, optimizer="adamw"
    )
    return workload.build(workload.presets["tiny"].options, build)


def make_reference(shards: int = 2) -> Reference:
    exact = make_problem(torch.float64)

    def batches(problem: Problem) -> Iterator[list[Batch]]:
        return step_batches(problem, shards=shards, accumulation_steps=1, whole=False)

    trained = train_reference(exact, batches(exact), 3)
    native = make_problem()
    step = next(batches(native))
    accumulate(native, step)
    gradients = copy_gradients(native.model.named_parameters())
    spread = reordering_spread(native, step, gradients, seed=0)
    return Reference(
        losses=trained.losses,
        first=trained.first,
        final=trained.final,
        moved=trained.moved,
        native=gradients,
        spread=spread,
    )


REFERENCE = make_reference()


def test_micro_batches_are_all_ranks_samples_in_the_order_of_time() -> None:
    problem = make_problem()
    apart = next(step_batches(problem, shards=2, accumulation_steps=3, whole=False))
    together = next(step_batches(problem, shards=2, accumulation_steps=3, whole=True))
    assert (len(apart), len(together)) == (6, 3)
    assert torch.equal(torch.cat([apart[2].targets, apart[3].targets]), together[1].targets)


def test_averaged_micro_batches_have_the_whole_batchs_gradient() -> None:
    # Without batch norm the two references are the same mathematics.
    gradients = []
    for whole in (False, True):
        problem = make_problem(torch.float64)
        accumulate(
            problem, next(step_batches(problem, shards=2, accumulation_steps=1, whole=whole))
        )
        gradients.append(copy_gradients(problem.model.named_parameters()))
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-9, atol=1e-15)


def normed_reference(*, buffers_of_every: int) -> Trained:
    """Three steps of a model with batch norm, each of two ranks' samples, or four micro-steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    problem = Problem(
        model=model,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda output, batch: (output.squeeze(-1) - batch.targets).square().mean(),
        batches=lambda _, __: iter(()),
    )
    generator = torch.Generator().manual_seed(1)
    drawn = [
        Batch((torch.randn(4, 2, generator=generator, dtype=torch.float64),), torch.zeros(4))
        for _ in range(2)
    ]
    steps = itertools.repeat(drawn)
    return train_reference(problem, steps, 3, accumulation_steps=2 // buffers_of_every)


def test_statistics_are_those_of_the_first_ranks_samples_alone() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(2).double()
    problem = Problem(
        model=norm,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda output, _: output.square().mean(),
        batches=lambda _, __: iter(()),
    )
    own, others = torch.full((2, 2), 3.0).double(), torch.full((2, 2), 100.0).double()
    own[0] = 1.0  # mean 2
    batches = [Batch((one,), torch.zeros(2)) for one in (own, others)]
    trained = train_reference(problem, iter([batches]), 1)
    # Momentum 0.1 from 0: a tenth of the first rank's mean.
    assert trained.buffers["running_mean"].tolist() == pytest.approx([0.2, 0.2])
    assert trained.buffers["num_batches_tracked"] == 1


def test_a_step_is_taken_with_gradients_from_elsewhere() -> None:
    problem, _ = linear(1.0)
    before = problem.model.get_parameter("weight").item()
    after = take_step(problem, [("weight", torch.tensor([[2.0]]))])
    assert after["weight"].item() == pytest.approx(before - 0.1 * 2)
    assert problem.model.get_parameter("weight").grad is None


def test_a_rounding_of_each_parameter_moves_gradients_by_roundings_and_nothing_else() -> None:
    problem = make_problem()
    before = [parameter.detach().clone() for parameter in problem.model.parameters()]
    step = next(step_batches(problem, shards=2, accumulation_steps=1, whole=False))
    spread = rounding_spread(problem, step, REFERENCE.native, seed=0, rounding=FLOAT32)
    after = list(problem.model.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(parameter.grad is None for parameter in after)
    sizes = {name: float(torch.linalg.vector_norm(one)) for name, one in REFERENCE.native.items()}
    typical = max(sizes.values())
    assert all(0 < spread[name] < 1e-4 * typical for name in sizes)


def linear(factor: float) -> tuple[Problem, list[Batch]]:
    """A model of one weight, whose gradient is the factor, the same for all samples."""
    model = torch.nn.Linear(1, 1, bias=False)
    problem = Problem(
        model=model,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda output, _: output.mean() * factor,
        batches=lambda _, __: iter(()),
        shard_units=lambda _: [],
    )
    return problem, [Batch((torch.ones(2, 1),), torch.zeros(2)) for _ in range(2)]


@pytest.mark.parametrize(
    ("factor", "ranks", "scale"),
    [
        (1.0, 2, 2.0**16),
        (1e35, 2, 2.0**8),  # times 2^16 it is beyond fp32, times 2^8 it is not
        (1e38, 1, 2.0**0),
        (2e38, 2, 2.0**-8),  # either rank's own mean is twice as much
    ],
)
def test_the_reference_has_the_largest_scale_at_which_nothing_overflows(
    factor: float, ranks: int, scale: float
) -> None:
    problem, batches = linear(factor)
    found, native, spread = scaled_reference(
        problem, batches, ranks=ranks, seed=0, region=contextlib.nullcontext
    )
    assert found == scale
    assert native["weight"].item() == pytest.approx(factor)  # without the scale again
    assert spread["weight"] == 0


def test_training_that_begins_a_rounding_off_goes_apart_by_roundings() -> None:
    eps, trained = torch.finfo(torch.float64).eps, []
    for rounding in (0.0, eps):
        problem = make_problem(torch.float64)
        before = [one.detach().clone() for one in problem.model.parameters()]
        nudge(problem.model.parameters(), rounding, seed=0)
        for one, other in zip(problem.model.parameters(), before, strict=True):
            moved = (one != other) & (other != 0)
            assert bool(moved.all() if rounding else not moved.any()) or not other.any()
        steps = step_batches(problem, shards=2, accumulation_steps=1, whole=False)
        trained.append(train_reference(problem, steps, 3))
    drift = drift_of(*trained)
    assert 0 < max(drift.losses) < 1e-9
    assert 0 < max(drift.final.values()) < 1e-9


def test_a_gradient_that_is_never_finite_has_no_reference() -> None:
    problem, batches = linear(math.inf)
    with pytest.raises(RuntimeError, match="use bf16-amp"):
        scaled_reference(problem, batches, ranks=1, seed=0, region=contextlib.nullcontext)


def test_a_reference_survives_its_file(tmp_path: Path) -> None:
    save_reference(tmp_path / "reference.pt", REFERENCE)
    again = load_reference(tmp_path / "reference.pt")
    assert again.losses == REFERENCE.losses
    assert again.spread == REFERENCE.spread
    assert again.moved == REFERENCE.moved
    assert all(torch.equal(again.final[name], one) for name, one in REFERENCE.final.items())
