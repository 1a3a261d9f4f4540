"""Samples that are drawn one by one on the host, for loaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from workloads.base import Batch, shard_seed

Draw = Callable[[Any, int, torch.Generator, torch.dtype], Batch]
"""(options, number of samples, generator, type of numbers with a point) -> a batch on the
generator's device."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Samples that are drawn when they are asked for, each from a seed of its own."""

    draw: Draw
    options: Any
    seed: int

    def __getitem__(self, index: int) -> Batch:
        """See ``Samples``."""
        generator = torch.Generator().manual_seed(shard_seed(self.seed, index))
        batch = self.draw(self.options, 1, generator, torch.float32)
        return Batch(tuple(one[0] for one in batch.inputs), batch.targets[0])


def bytes_of_sample(draw: Draw, options: Any) -> int:
    """Bytes of one sample on the host."""
    batch = draw(options, 1, torch.Generator().manual_seed(0), torch.float32)
    return sum(one.nbytes for one in (*batch.inputs, batch.targets))
