"""Activation checkpointing: each shard unit keeps its inputs, and is computed again in backward.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. By ``torch.utils.checkpoint`` in
its non-reentrant form, which every wrapper takes: the other one has DDP see a parameter ready twice
(pytorch#69060).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

Regions = tuple[AbstractContextManager[None], AbstractContextManager[None]]


def checkpoint_units(units: Sequence[nn.Module]) -> None:
    """Have each unit computed again in backward; where one holds another, the inner one only.

    In place, by a class of the same name with another ``forward``, so that names, hooks, copies and
    replicas of the units, and whatever a strategy wraps around them, remain what they are.

    Args:
        units: of one model.

    Raises:
        ValueError: there are none, or one whose ``forward`` is no method of its class.
    """
    if not units:
        raise ValueError(
            "activation_checkpointing has nothing to do: the workload's shard_units gives none; "
            "let it give the model's blocks, or set has_shard_units=False among its facts"
        )
    known = set(units)
    made: dict[type[nn.Module], type[nn.Module]] = {}
    for unit in dict.fromkeys(units):
        if not any(inner in known for inner in unit.modules() if inner is not unit):
            if "forward" in vars(unit):
                raise ValueError(
                    f"activation_checkpointing cannot reach {type(unit).__name__}.forward, which "
                    "the module has for itself alone; define it in the class"
                )
            kind = type(unit)
            if kind not in made:
                made[kind] = _checkpointed(kind)
            unit.__class__ = made[kind]


def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    """The class with a ``forward`` that keeps nothing."""

    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        arguments: dict[str, Any] = {"use_reentrant": False}
        if not torch.compiler.is_compiling():  # a compiler plans by itself what is computed again
            arguments["context_fn"] = _regions_of(self)
        return checkpoint(kind.forward, self, *inputs, **arguments, **named)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {"forward": forward, "__doc__": kind.__doc__, **names})


def _regions_of(unit: nn.Module) -> Callable[[], Regions]:
    """Makes the regions in which the unit is computed the first and the second time."""
    return lambda: (contextlib.nullcontext(), statistics_kept(unit))


def _no_count(norm: _NormBase) -> torch.Tensor | None:
    """What stands in for the count of batches: the synchronised ones insist on one to add to."""
    batches = norm.num_batches_tracked
    if batches is None or not isinstance(norm, nn.SyncBatchNorm):
        return None
    return torch.zeros_like(batches)


@contextlib.contextmanager
def statistics_kept(unit: nn.Module) -> Iterator[None]:
    """Leave running statistics of norms alone, which the first time has brought up to date.

    Without this, torch counts every batch twice (pytorch#96136). The statistics stay arguments of
    the operator, with a weight of 0, since a second time must save as many tensors as the first.
    """
    norms = [
        one for one in unit.modules() if isinstance(one, _NormBase) and one.track_running_stats
    ]
    before = [(one, one.momentum, one.num_batches_tracked) for one in norms]
    for one in norms:
        one.momentum, one.num_batches_tracked = 0.0, _no_count(one)
    try:
        yield
    finally:
        for one, momentum, batches in before:
            one.momentum, one.num_batches_tracked = momentum, batches
