"""When each row's training reached the same loss, and which was first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from bench.analyze.rows import Row
from bench.analyze.stats import (
    CONFIDENCE,
    Estimate,
    chance_of,
    figure_of,
    holm,
    noise_of,
    ratio_of,
)
from bench.records.trained import Training

SHARE = 20
"""Part of the steps that a loss is averaged over: that of one step's batch scatters."""
LEARNT = 0.9
"""Of the first losses, that the last ones must be below for anything to have been learnt."""


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """When a row's training came down to the loss that all reach."""

    row: Row
    step: int
    """Optimizer steps until then; the same in all launches but for rounding."""
    launches: list[float]
    """Seconds until then, of each launch."""
    seconds: Estimate
    ratio: Estimate | None = None
    """Of its seconds to those of the first row; None for that row itself."""
    is_clear: bool = False
    """Whether that is more than noise."""


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """The trainings of one table, compared at a loss that all of them reach."""

    loss: float
    reached: list[Reached]
    """The first one first."""
    unlearnt: list[Row]
    """Rows whose loss has not fallen."""


def smoothed(losses: Sequence[float | None]) -> list[float]:
    """Mean of each loss and those just before it; infinite where one is no number.

    >>> smoothed([4.0, 2.0])  # too few steps to average any
    [4.0, 2.0]
    >>> smoothed([4.0, 2.0] * 20)[-2:]  # over two steps of forty
    [3.0, 3.0]
    """
    width = max(1, len(losses) // SHARE)
    plain = [math.inf if one is None else one for one in losses]
    return [statistics.fmean(plain[max(0, end - width) : end]) for end in range(1, len(plain) + 1)]


def step_to(losses: Sequence[float | None], loss: float) -> int | None:
    """Steps until the smoothed loss is no more than a given one; None where it never is.

    >>> step_to([4.0, 3.0, 2.0, 1.0], 2.5)
    3
    """
    found = enumerate(smoothed(losses), start=1)
    return next((step for step, one in found if one <= loss), None)


def has_learnt(training: Training) -> bool:
    """Whether the loss has fallen by more than a tenth."""
    curve = smoothed(training.losses)
    return bool(curve) and curve[-1] < LEARNT * curve[0]


def race(rows: Sequence[Row]) -> Race | None:
    """Compare the rows of a table that were trained; None where none has learnt.

    The loss is the lowest that all of them come down to, so that every row has a time. Rows that
    failed their proof train another model, and rows that learnt nothing would set no mark.
    """
    trained = [row for row in rows if row.training and not row.is_proved_wrong]
    learnt = [row for row in trained if all(map(has_learnt, row.training))]
    if not learnt:
        return None
    loss = max(min(smoothed(one.losses)) for row in learnt for one in row.training)
    reached = sorted((_reached(row, loss) for row in learnt), key=lambda one: one.seconds.value)
    return Race(
        loss=loss,
        reached=_compared(reached),
        unlearnt=[row for row in trained if row not in learnt],
    )


def _reached(row: Row, loss: float) -> Reached:
    steps = [step_to(one.losses, loss) for one in row.training]
    known = [step for step in steps if step is not None]
    assert len(known) == len(steps), "all come down to it"
    launches = [one.at_s[step - 1] for one, step in zip(row.training, known, strict=True)]
    return Reached(row=row, step=known[0], launches=launches, seconds=figure_of(launches))


def _compared(reached: Sequence[Reached]) -> list[Reached]:
    """With the ratio to the first one, and whether it is clear among all of them together."""
    first, *others = reached
    noise = noise_of(one.launches for one in reached)
    chances = [chance_of(one.launches, first.launches, noise) for one in others]
    corrected = iter(holm([chance for chance in chances if chance is not None]))
    compared = [
        msgspec.structs.replace(
            one,
            ratio=ratio_of(one.launches, first.launches, noise),
            is_clear=chance is not None and next(corrected) < 1 - CONFIDENCE,
        )
        for one, chance in zip(others, chances, strict=True)
    ]
    return [first, *compared]
