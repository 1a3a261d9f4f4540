"""What one process sees of somebody's strategy or workload: each thing right, or wrong in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from bench.plan.own import at_its_place
from bench.run.handover import Look

NEAR = 1e-6
"""Relative difference of tensors in fp64 that the order of sums explains."""
NAMED = 3
"""Names in a message."""

Tensors = dict[str, Tensor]


class Looks:
    """Collects what was looked at. What raises is wrong, and what comes after it is still tried."""

    def __init__(self) -> None:
        self.found: list[Look] = []

    def take(self, name: str, look: Callable[[], str | None]) -> bool:
        """Look at one thing; returns whether it is right.

        Args:
            name: what it is.
            look: returns what is wrong, with the remedy.
        """
        try:
            problem = look()
        except Exception as error:  # noqa: BLE001 - whatever the user's code does
            problem = at_its_place(error)
        self.found.append(Look(name=name, problem=problem))
        return problem is None


def distance(one: Tensors, other: Tensors) -> float:
    """Of two sets of tensors with the same names, relative to the second; infinite for NaN."""
    difference = total = 0.0
    for name, tensor in other.items():
        difference += float((_host(one[name]) - _host(tensor)).square().sum())
        total += float(_host(tensor).square().sum())
    relative = (difference / total) ** 0.5 if total else difference**0.5
    return float("inf") if math.isnan(relative) else relative


def _host(tensor: Tensor) -> Tensor:
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return dense.detach().cpu().double()


def copied(tensors: Iterable[tuple[str, Tensor]]) -> Tensors:
    """On the host, in fp64, by name."""
    return {name: _host(tensor).clone() for name, tensor in tensors}


def names_differ(given: Iterable[str], wanted: Iterable[str], what: str) -> str | None:
    """Where something has other names than the model."""
    given, wanted = list(given), list(wanted)
    extra = [name for name in given if name not in set(wanted)]
    lacking = [name for name in wanted if name not in set(given)]
    if not extra and not lacking:
        return None
    parts = [f"lacks {_some(lacking)}"] if lacking else []
    parts += [f"has {_some(extra)}, which the model has not"] if extra else []
    return f"{what} {' and '.join(parts)}: names are those of problem.model.named_parameters()"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def mean(parts: list[Tensors]) -> Tensors:
    """Of tensors with the same names."""
    return {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}


def scaled(tensors: Tensors, factor: float) -> Tensors:
    """Each times a number."""
    return {name: tensor * factor for name, tensor in tensors.items()}
