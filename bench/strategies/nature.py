"""What a strategy's options make of its training: how exact it is, and what its rhythm is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

LEAST_FURTHER = 2
"""Optimizer steps after the first of its own kind, in whose losses its faults show."""


@dataclass(frozen=True, kw_only=True)
class Exactness:
    """How near a strategy comes to what one device would train."""

    kind: Literal["exact", "lossy", "local"] = "exact"
    """``lossy``: gradients are the same on all ranks, and not quite those of one device. ``local``:
    ranks train apart, and are equal after each round of their rhythm only."""
    gradient_error: float = 0.0
    """Largest relative error of any tensor of a gradient that a lossy strategy may cause. Below 1,
    which is that of a missing gradient."""
    may_keep_all: bool = False
    """Whether a lossy strategy may lose nothing of some gradient, which so proves nothing of it."""


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """In which optimizer steps a strategy does what.

    >>> rhythm = Rhythm(settle_steps=1, period=2)
    >>> [steps for steps in range(7) if rhythm.ends_round(steps)]
    [2, 4, 6]
    >>> Rhythm().proof_steps, rhythm.proof_steps
    (3, 4)
    """

    settle_steps: int = 0
    """Steps in which it trains otherwise than later; figures are made of later ones."""
    period: int = 1
    """Steps after which it repeats itself. A round ends with the first step after settling, and
    with each ``period``-th from there."""

    def ends_round(self, steps: int) -> bool:
        """Whether so many optimizer steps are whole rounds."""
        after = steps - self.settle_steps - 1
        return after >= 0 and after % self.period == 0

    @property
    def proof_steps(self) -> int:
        """Optimizer steps of a proof: whole rounds, with ``LEAST_FURTHER`` steps that show more."""
        return self.settle_steps + 1 + self.whole_rounds(LEAST_FURTHER)

    def whole_rounds(self, steps: int) -> int:
        """At least so many steps, in whole rounds.

        >>> Rhythm(period=4).whole_rounds(10)
        12
        """
        return math.ceil(steps / self.period) * self.period


STEADY = Rhythm()
"""All steps are alike."""


def exact(options: Mapping[str, Any]) -> Exactness:
    """Of a strategy that only averages gradients, whatever its options."""
    del options
    return Exactness()


def steady(options: Mapping[str, Any]) -> Rhythm:
    """Of a strategy all of whose steps are alike, whatever its options."""
    del options
    return STEADY


def as_it_is(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a strategy that needs no steps to settle."""
    return options
