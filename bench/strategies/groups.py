"""Groups of ranks: those that share a host or a model, and those in the same place of each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed import ProcessGroup

NEVER = timedelta(days=365)
"""Time-out of the groups made here: the parent ends a stuck launch, with stacks."""
ALL_GATHER: Any = (
    getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
)
REDUCE_SCATTER: Any = (
    getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
)
"""Of one tensor into one, by the name that this torch wants them called."""


def ranks_of(size: int, world_size: int) -> list[list[int]]:
    """Ranks by group (rows) and place within it (columns); neighbours share a group.

    >>> ranks_of(2, 4)
    [[0, 1], [2, 3]]
    """
    return [list(range(begin, begin + size)) for begin in range(0, world_size, size)]


def make_groups(size: int, world_size: int) -> tuple[ProcessGroup, ProcessGroup]:
    """This rank's own (column, row) of ``ranks_of``. Collective.

    Made here, and not by a mesh, which may take another backend than that of the ranks' group
    (pytorch#132471).
    """
    rows = ranks_of(size, world_size)
    columns = [list(column) for column in zip(*rows, strict=True)]
    return _own_group(columns), _own_group(rows)


def _own_group(parts: Iterable[list[int]]) -> ProcessGroup:
    """Every rank makes all of them, in the same order."""
    rank = distributed.get_rank()
    own: ProcessGroup | None = None
    for ranks in parts:
        group = distributed.new_group(ranks, timeout=NEVER)
        if rank in ranks:
            assert isinstance(group, ProcessGroup)
            own = group
    assert own is not None, "the parts cover all ranks"
    return own


def backend_of(device: torch.device) -> str:
    """Name of the backend that carries a device's tensors in the default group."""
    # Such as cpu:gloo,cuda:nccl.
    pairs = dict(pair.split(":") for pair in distributed.get_backend_config().split(","))
    return str(pairs[device.type])
