from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from bench.measure.parity import (
    Comparison,
    compare_buffers,
    compare_final,
    compare_first,
    compare_losses,
    compare_native,
    compare_step,
    digest,
    worst,
)
from bench.measure.reference import Drift, Reference, step_batches
from bench.measure.spread import rounding_spread
from tests.measure.test_reference import FLOAT32, REFERENCE, make_problem, normed_reference


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


STEP_OF = {"weight": torch.tensor([1.0, -2.0]), "bias": torch.tensor([0.5])}
"""Parameters before a step of 0.1 each."""


@pytest.mark.parametrize(
    ("step", "passes"),
    [(0.1, True), (0.1 + 1e-8, True), (0.05, False), (0.0, False), (0.101, False), (-0.1, False)],
)
def test_an_optimizer_step_of_another_length_is_found(step: float, passes: bool) -> None:
    after = {name: value - 0.1 for name, value in STEP_OF.items()}
    own = dict(after) | {"bias": STEP_OF["bias"] - step}
    comparison = compare_step(own.items(), STEP_OF, after, rounding=FLOAT32)
    assert comparison.passed == passes
    assert passes or comparison.where == "step of bias"


def test_a_step_too_short_for_its_type_may_round_either_way() -> None:
    before = {"weight": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}
    rounding = torch.finfo(torch.bfloat16).eps
    up = {"weight": before["weight"] + rounding}
    assert compare_step(before.items(), before, up, rounding=rounding).passed
    far = {"weight": before["weight"] + 16 * rounding}
    assert not compare_step(far.items(), before, up, rounding=rounding).passed


def test_statistics_that_count_twice_or_follow_other_ranks_are_found() -> None:
    kept = normed_reference(buffers_of_every=2)
    names = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(kept.buffers) == names
    assert kept.buffers["1.num_batches_tracked"] == 3  # one for each step, and not for each rank
    reference = dataclasses.replace(
        REFERENCE, buffers=kept.buffers, buffers_moved=kept.buffers_moved
    )
    assert compare_buffers(kept.buffers.items(), reference).error == 0
    other = normed_reference(buffers_of_every=1)
    wrong = compare_buffers(other.buffers.items(), reference)
    assert not wrong.passed
    assert wrong.where.startswith("buffer 1.")
    for name in names - {"1.num_batches_tracked"}:
        one = {**kept.buffers, name: other.buffers[name]}
        assert compare_buffers(one.items(), reference).where == f"buffer {name}"


def test_buffers_may_hold_infinities() -> None:
    mask = {"mask": torch.tensor([0.0, -math.inf])}
    reference = dataclasses.replace(REFERENCE, buffers=mask, buffers_moved={"mask": 0.0})
    assert compare_buffers(mask.items(), reference).passed
    wrong = {"mask": torch.tensor([-math.inf, 0.0])}
    assert not compare_buffers(wrong.items(), reference).passed


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


def test_what_one_rounding_comes_to_is_no_proof_of_a_fault_and_none_of_the_contrary() -> None:
    drift = Drift(losses=[0.0, 1e-6, 1e-3], final=dict.fromkeys(REFERENCE.final, 1.0))
    chaotic = dataclasses.replace(REFERENCE, drift=drift)

    def off_by(share: float, step: int) -> Comparison:
        losses = [*REFERENCE.losses]
        losses[step] *= 1 + share
        return compare_losses(losses, chaotic)

    assert off_by(1e-7, 2).passed
    assert off_by(5e-6, 2).may_be_rounding
    assert "as training that begins one rounding off may be" in str(off_by(5e-6, 2))
    assert not off_by(5e-6, 0).may_be_rounding  # nothing has been amplified yet
    assert not off_by(5e-2, 2).may_be_rounding
    # However far training goes apart, a step that is wrong by half is not excused.
    wrong = {name: tensor * 0.5 for name, tensor in REFERENCE.final.items()}
    found = compare_final(wrong.items(), chaotic)
    assert not found.passed
    assert not found.may_be_rounding
    counts = {"seen": torch.tensor(4.0, dtype=torch.float64)}
    counting = dataclasses.replace(
        chaotic, buffers=counts, buffers_moved={"seen": 4.0},
        drift=dataclasses.replace(drift, buffers={"seen": 4.0}),
    )  # fmt: skip
    assert compare_buffers([("seen", counts["seen"] * 1.4)], counting).may_be_rounding
    assert not compare_buffers([("seen", counts["seen"] * 2.0)], counting).may_be_rounding


def test_an_excused_tensor_hides_no_wrong_one() -> None:
    excused = Comparison(error=0.5, tolerance=1e-3, where="one", drift=0.9)
    wrong = Comparison(error=2e-3, tolerance=1e-3, where="other")
    good = Comparison(error=0.0, tolerance=1e-3, where="third")
    assert worst([good, excused, wrong]).where == "other"
    assert worst([good, excused]).where == "one"
    assert not Comparison(error=1.0, tolerance=0.0, where="", drift=math.inf).may_be_rounding


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


def test_a_digest_sees_every_bit() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    other = tensor.clone()
    other[1, 2] = torch.nextafter(other[1, 2], torch.tensor(9.0))
    assert digest([tensor]) == digest([tensor.clone()])
    assert digest([tensor]) != digest([other])
    assert digest([tensor.to(torch.bfloat16)]) != digest([tensor])
    assert digest([tensor.t()]) == digest([tensor.t().contiguous()])
