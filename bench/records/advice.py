"""What to use on devices that are not here, predicted: never among what was measured."""

from __future__ import annotations

from typing import Literal

import msgspec

from bench.records.numbers import Bytes
from bench.records.scaling import Predicted


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy with its settings, at a batch."""

    predicted: Predicted
    peak_bytes: Bytes | None = None
    """Of tensors, on the device that holds most; None where it cannot be predicted."""
    reason: str | None = None
    """Why it is not eligible, in words; None where it is."""
    settings: int = 0
    """That differ from the strategy's own defaults."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice among predictions."""

    kind: Literal["predicted"] = "predicted"
    where: str
    """The devices, as they were described."""
    network: str
    basis: str
    """What the predictions rest on, a sentence."""
    memory_bytes: Bytes
    """Of each device."""
    allowance_bytes: Bytes
    """Of that, set aside for what no tensor shows."""
    asked_batch: int
    """Samples of a device and step that are said to be wanted, or were profiled."""
    least_gain: float
    """What settings must be predicted to bring, as a share, to be chosen."""
    eligible: list[Candidate]
    """The quickest first; empty where nothing fits."""
    ruled_out: list[Candidate]
    flips_at_bytes_per_s: float | None = None
    """Rate of the links at which another strategy becomes the best, nearest to theirs."""
    flips_to: str | None = None

    @property
    def best(self) -> Candidate | None:
        """Of the quickest and all within ``least_gain`` of it, that with the fewest settings.

        At the quickest one's batch: another batch is another training.
        """
        return best_of(self.eligible, self.least_gain)

    @property
    def runner_up(self) -> Candidate | None:
        """The quickest of another strategy, or, if there is none, of other settings."""
        best = self.best
        if best is None:
            return None
        others = [one for one in self.eligible if _way(one) != _way(best)]
        own = best.predicted.case.strategy
        return next((one for one in others if one.predicted.case.strategy != own), None) or next(
            iter(others), None
        )

    @property
    def at_asked_batch(self) -> Candidate | None:
        """The choice at the batch that was asked for, where the best has another."""
        best = self.best
        if best is None or best.predicted.case.per_device_batch == self.asked_batch:
            return None
        some = [
            one for one in self.eligible if one.predicted.case.per_device_batch == self.asked_batch
        ]
        return best_of(some, self.least_gain)


def best_of(eligible: list[Candidate], least_gain: float) -> Candidate | None:
    """The choice among some, the quickest first."""
    if not eligible:
        return None
    first = eligible[0].predicted
    near = [
        one
        for one in eligible
        if one.predicted.samples_per_s >= (1 - least_gain) * first.samples_per_s
        and one.predicted.case.per_device_batch == first.case.per_device_batch
    ]
    return min(near, key=lambda one: one.settings)


def _way(one: Candidate) -> str:
    return one.predicted.case.label
