"""When trainings came down to the same loss, on curves that one can follow in the head."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.analyze.learning import has_learnt, race, smoothed, step_to
from bench.analyze.rows import Row
from bench.records.trained import Training
from tests.fakes import make_case


def training(losses: Sequence[float | None], step_s: float) -> Training:
    return Training(
        losses=list(losses),
        at_s=[step_s * step for step in range(1, len(losses) + 1)],
        task="numbers that count upwards",
        constant_loss=3.0,
        rate=1e-3,
    )


def row(strategy: str, losses: Sequence[float | None], *seconds: float, world_size: int = 2) -> Row:
    """A row whose launches took so many seconds a step."""
    case = make_case(strategy=strategy, world_size=world_size)
    return Row(case=case, status="ok", training=[training(losses, one) for one in seconds])


FALLING = [float(loss) for loss in range(10, 0, -1)]
"""10, 9 ... 1: too few steps to average over any."""


def test_losses_are_averaged_over_a_twentieth_of_the_steps() -> None:
    assert smoothed(FALLING) == FALLING
    assert smoothed([4.0, 2.0] * 20)[:3] == [4.0, 3.0, 3.0]
    assert smoothed([1.0, None])[-1] == float("inf")


def test_a_loss_is_reached_at_the_first_step_that_shows_it() -> None:
    assert step_to(FALLING, 7.5) == 4
    assert step_to(FALLING, 0.5) is None
    assert has_learnt(training(FALLING, 1.0))
    assert not has_learnt(training([3.0] * 10, 1.0))
    assert not has_learnt(training([3.0, 2.0, None], 1.0))


def test_all_are_compared_at_a_loss_that_all_reach() -> None:
    quick = row("ddp", FALLING, 0.1, 0.101, 0.102)
    slow = row("fsdp", FALLING[:-2], 0.3, 0.301, 0.302)  # comes down to 3 only
    found = race([slow, quick])
    assert found is not None
    assert found.loss == 3.0
    first, second = found.reached
    assert (first.row, first.step) == (quick, 8)
    assert [round(one, 3) for one in first.launches] == [0.8, 0.808, 0.816]
    assert second.ratio is not None
    assert 2.9 < second.ratio.value < 3.1
    assert second.is_clear


def test_equal_rows_and_single_trainings_are_no_clear_difference() -> None:
    near = race([row("ddp", FALLING, 0.1, 0.12, 0.11), row("fsdp", FALLING, 0.11, 0.1, 0.12)])
    once = race([row("ddp", FALLING, 0.1), row("fsdp", FALLING, 0.3)])
    assert near is not None
    assert once is not None
    assert not any(one.is_clear for one in [*near.reached, *once.reached])


def test_what_learns_nothing_sets_no_mark() -> None:
    flat = row("fsdp", [10.0] * 10, 0.1)
    diverged = row("zero", [10.0, 9.0, None], 0.1)
    found = race([flat, diverged, row("ddp", FALLING, 0.1)])
    assert found is not None
    assert found.loss == 1.0
    assert found.unlearnt == [flat, diverged]
    assert race([flat]) is None


def test_what_failed_its_proof_is_not_compared() -> None:
    wrong = msgspec.structs.replace(row("fsdp", FALLING, 0.01), flags=["ranks_differ"])
    found = race([wrong, row("ddp", FALLING, 0.1)])
    assert found is not None
    assert [one.row.case.strategy for one in found.reached] == ["ddp"]
