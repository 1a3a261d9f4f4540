"""Predicted figures: of the same cases as measured ones, never among them.

A prediction is no record. It has a type of its own, so that nothing can take the one for the other.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bench.plan.case import Case
from bench.records.numbers import Bytes


class PredictedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch per device whose predicted peak fits, found by bisection."""

    per_device_batch: int | None
    """None where not even the least fits."""
    too_large: int | None
    """The least number of samples tried that does not fit; None where all did."""


class PredictedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Tensor memory of one steady step of a case, on the device that holds most."""

    case: Case
    reason: str | None = None
    """Why there is no prediction, in words; None where there is one."""
    peak_bytes: Bytes | None = None
    """Largest total of live tensors; the same quantity as a record's ``peak_allocated_bytes``."""
    by_category: dict[str, Bytes] = {}
    """What the peak is made of, by the names that a record has."""
    max_batch: PredictedBatch | None = None
    """None where it was not asked for, or where there is nothing to search."""

    def needed_bytes(self, allowance_bytes: int) -> int | None:
        """Peak and allowance together; None where there is no prediction.

        >>> PredictedMemory(case=None, peak_bytes=10).needed_bytes(5)
        15
        """
        return None if self.peak_bytes is None else self.peak_bytes + allowance_bytes


class MemoryForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What ``bench predict memory`` found out, with all that it assumed."""

    kind: Literal["predicted"] = "predicted"
    torch: str
    """Version whose operators were run on tensors without data."""
    device_memory_bytes: Bytes | None
    """What each device has; None where nothing was said of it."""
    allowance_bytes: Bytes
    """For what the model cannot know; in no peak."""
    rows: list[PredictedMemory]

    def fits(self, row: PredictedMemory) -> bool | None:
        """Whether peak and allowance are within the device; None where one of them is unknown."""
        needed = row.needed_bytes(self.allowance_bytes)
        if needed is None or self.device_memory_bytes is None:
            return None
        return needed <= self.device_memory_bytes


class ScoredMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction beside what was measured of the same case."""

    case: Case
    measured_bytes: list[Bytes]
    """Exact peak of each device, from a memory pass."""
    predicted_bytes: Bytes
    measured_by_category: dict[str, Bytes] = {}
    """Of the device that held most."""
    predicted_by_category: dict[str, Bytes] = {}

    @property
    def error(self) -> float:
        """Relative, of the prediction, against the device that held most.

        >>> ScoredMemory(case=None, measured_bytes=[100, 80], predicted_bytes=99).error
        -0.01
        """
        return self.predicted_bytes / max(self.measured_bytes) - 1


class MemoryScore(msgspec.Struct, frozen=True, kw_only=True):
    """All that predictions of memory were compared with."""

    torch: str
    rows: list[ScoredMemory]
