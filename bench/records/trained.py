"""What the passes say that train on: checkpoints, and learning."""

from __future__ import annotations

from typing import Literal

import msgspec

from bench.plan.case import LearningRate
from bench.records.numbers import Bytes, Figure, Seconds, Size, Whole


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Saving a training state and going on from it."""

    verdict: Literal["exact", "failed", "not_checked"]
    """Whether all that was restored, on the same ranks, onto one device and back from it, was what
    had been saved, bit for bit, and trained on as the uninterrupted training did."""
    reason: str | None = None
    """Why it failed, or was not checked."""
    form: Literal["whole", "sharded"] | None = None
    """``whole``: one file that rank 0 writes. ``sharded``: a file for each rank."""
    save_s: list[Seconds] = []
    """Of each save, on the slowest rank: from the training state on the devices until the disk has
    it, gathering and copying to the host included."""
    restore_s: list[Seconds] = []
    """Of each restore, on the slowest rank: from the files to a training state on the devices."""
    bytes_by_rank: list[Bytes] = []
    """Of the files that each rank has written."""
    is_cold: bool = False
    """Whether the system was asked to drop the files from its page cache before they were read."""
    loss_errors: dict[str, Size] = {}
    """fp64, by trip: largest relative error of the losses after restoring."""
    tolerance: Size | None = None
    """That they are allowed."""
    steps: Whole | None = None
    """Optimizer steps after restoring."""

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(self.bytes_by_rank)


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """Some optimizer steps of training from the start, on batches that are not seen again."""

    losses: list[float | None]
    """Of each step's global batch before the step, mean over all ranks; null for what is no
    number."""
    at_s: list[Seconds]
    """Since training began, at the end of each step, on the slowest rank; the first step's cost
    is part of it, and what lies between blocks of steps is not."""
    task: str | None = None
    """What there is to learn, in words; null where the workload gives no such task, so that these
    are the batches that it is timed with."""
    constant_loss: Figure | None = None
    """Of the best prediction that is always the same; null where it is not known."""
    learning_rate: LearningRate = "fixed"
    """What the learning rate does when devices are added: nothing, or grow with their number."""
    learning_rate_factor: Figure = 1.0
    """That it was multiplied by."""
    rate: Figure | None = None
    """The learning rate itself, of the optimizer's first group."""
