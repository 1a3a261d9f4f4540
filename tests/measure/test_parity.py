from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.measure.parity import (
    STEPS,
    Comparison,
    Reference,
    accumulate,
    compare_final,
    compare_first,
    compare_losses,
    compare_native,
    copy_gradients,
    digest,
    load_reference,
    reordering_spread,
    rounding_spread,
    save_reference,
    scaled_reference,
    step_batches,
    train_reference,
)
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

    trained = train_reference(exact, batches(exact), STEPS)
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


def comparisons(reference: Reference) -> list[Comparison]:
    return [
        compare_losses(reference.losses, REFERENCE),
        compare_first(reference.first.items(), REFERENCE),
        compare_final(reference.final.items(), REFERENCE),
        compare_native(reference.native.items(), REFERENCE, rounding=FLOAT32),
    ]


def test_the_reference_agrees_with_itself() -> None:
    for comparison in comparisons(REFERENCE):
        assert comparison.error == 0
        assert comparison.passed
    assert 0 < comparisons(REFERENCE)[-1].loosest < 1e-3


def test_reordering_moves_gradients_a_little_and_never_by_their_own_size() -> None:
    moved = [
        REFERENCE.spread[name] / float(torch.linalg.vector_norm(gradient))
        for name, gradient in REFERENCE.native.items()
        if float(torch.linalg.vector_norm(gradient)) > 1e-6
    ]
    assert max(moved) > 0
    assert max(moved) < 1e-3


def test_other_sums_pass_and_a_wrong_factor_does_not() -> None:
    generator = torch.Generator().manual_seed(1)
    rounded = {
        name: gradient * (1 + FLOAT32 * torch.randn(gradient.shape, generator=generator))
        for name, gradient in REFERENCE.native.items()
    }
    assert compare_native(rounded.items(), REFERENCE, rounding=FLOAT32).passed
    for factor in (0.5, 0.99, 2.0):
        scaled = {name: gradient * factor for name, gradient in REFERENCE.native.items()}
        assert not compare_native(scaled.items(), REFERENCE, rounding=FLOAT32).passed


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


def test_a_compiled_model_may_round_elsewhere_and_not_be_wrong() -> None:
    problem = make_problem()
    step = next(step_batches(problem, shards=2, accumulation_steps=1, whole=False))
    spread = rounding_spread(problem, step, REFERENCE.native, seed=0, rounding=FLOAT32)
    reference = dataclasses.replace(REFERENCE, rounding_spread=spread)
    name, gradient = next(iter(REFERENCE.native.items()))
    direction = gradient / torch.linalg.vector_norm(gradient)
    moved = dict(REFERENCE.native) | {name: gradient + 3 * spread[name] * direction}
    wrong = dict(REFERENCE.native) | {name: gradient * 0.99}

    def passes(gradients: dict[str, torch.Tensor], *, is_compiled: bool) -> bool:
        return compare_native(
            gradients.items(), reference, rounding=FLOAT32, is_compiled=is_compiled
        ).passed

    assert passes(moved, is_compiled=True)
    assert not passes(wrong, is_compiled=True)


def test_one_wrong_tensor_among_many_is_found_and_named() -> None:
    for name in REFERENCE.native:
        changed = dict(REFERENCE.native)
        changed[name] = changed[name] * 1.5
        comparison = compare_native(changed.items(), REFERENCE, rounding=FLOAT32)
        size = float(torch.linalg.vector_norm(REFERENCE.native[name]))
        if size > 1e-6:  # all else is rounding noise, which nothing can tell apart
            assert not comparison.passed
            assert comparison.where == f"gradient of {name}"


def test_a_loss_that_drifts_fails() -> None:
    losses = [*REFERENCE.losses[:2], REFERENCE.losses[2] * (1 + 2e-6)]
    comparison = compare_losses(losses, REFERENCE)
    assert not comparison.passed
    assert comparison.where == "loss of step 3"


def test_a_scaled_gradient_is_found_though_adam_would_hide_it_from_the_losses() -> None:
    doubled = {name: 2 * gradient for name, gradient in REFERENCE.first.items()}
    assert not compare_first(doubled.items(), REFERENCE).passed


def test_an_update_that_is_wrong_in_the_last_step_only_is_found() -> None:
    # No loss has seen it: two thirds of the way of one small tensor are right.
    final = dict(REFERENCE.final)
    name = "norm.bias"  # starts at zero, so that it is its own way
    final[name] = final[name] * (2 / 3)
    comparison = compare_final(final.items(), REFERENCE)
    assert not comparison.passed
    assert comparison.where == "parameter norm.bias"
    assert comparison.error == pytest.approx(1 / 3)


def test_what_is_not_a_number_never_passes() -> None:
    assert not Comparison(error=math.nan, tolerance=1.0, where="").passed
    changed = dict(REFERENCE.native)
    changed["norm.bias"] = changed["norm.bias"] * math.nan
    comparison = compare_native(changed.items(), REFERENCE, rounding=FLOAT32)
    assert comparison.where == "gradient of norm.bias"
    assert not comparison.passed


def test_missing_and_foreign_gradients_fail() -> None:
    fewer = {name: one for name, one in REFERENCE.native.items() if name != "norm.bias"}
    more = REFERENCE.native | {"extra": torch.zeros(1)}
    other = REFERENCE.native | {"norm.bias": torch.zeros(3)}
    for gradients, message in (
        (fewer, "gradient of norm.bias, which the strategy does not have, is off by inf"),
        (more, "gradient of extra, which one device does not have like this, is off by inf"),
        (other, "gradient of norm.bias, which one device does not have like this, is off by inf"),
    ):
        comparison = compare_native(gradients.items(), REFERENCE, rounding=FLOAT32)
        assert not comparison.passed
        assert str(comparison).startswith(message)


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
    assert all(comparison.error == 0 for comparison in comparisons(again))


def test_a_digest_sees_every_bit() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    other = tensor.clone()
    other[1, 2] = torch.nextafter(other[1, 2], torch.tensor(9.0))
    assert digest([tensor]) == digest([tensor.clone()])
    assert digest([tensor]) != digest([other])
    assert digest([tensor.to(torch.bfloat16)]) != digest([tensor])
    assert digest([tensor.t()]) == digest([tensor.t().contiguous()])
