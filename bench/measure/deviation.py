"""How far a strategy that is inexact by design trains from what one device would.

Gradients and parameters are taken as one vector each: what a reader wants to know is how much of a
step is lost. That a part is missing, or the whole too long or too short, is found tensor by tensor
and by the length; what a compression loses beyond that is stated, and no fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.measure.parity import Comparison, compare_gradients
from bench.measure.reference import Reference, Tensors, dense, norm

LENGTH_TOLERANCE = 0.1
"""Of the length of a compressed gradient: what rounds keeps it nearly, what projects shortens it
just so that ``<true, compressed>`` is ``<compressed, compressed>``. A sum in place of a mean, or a
rank left out, does neither."""
LOSS_TOLERANCE = 0.1
"""Of the losses after the first inexact step, relative, beside what the reference's own losses
change by: large steps through a rough landscape end elsewhere for little."""
WAY_TOLERANCE = 0.95
"""Of the last parameters, relative to their way. Parameters that never moved are off by 1."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """What is stated of an inexact vector, and what is asked of it."""

    error: float
    """Relative, of all tensors together."""
    comparisons: list[Comparison]


@dataclass(kw_only=True)
class _Sums:
    """Of all tensors together."""

    difference: list[float] = field(default_factory=list)
    """Norms, one of each tensor."""
    product: float = 0.0
    """Of the true vector with our own."""
    square: float = 0.0
    """Of our own with itself."""
    broken: list[str] = field(default_factory=list)
    """Names of tensors that hold what is no number."""

    def along(
        self, own: Iterable[tuple[str, Tensor]], expected: Tensors
    ) -> Iterator[tuple[str, Tensor]]:
        """The same tensors, on the host, each added up on its way."""
        for name, tensor in own:
            whole = dense(tensor.detach()).cpu()
            if not torch.isfinite(whole).all():
                self.broken.append(name)
            true = expected.get(name)
            if true is not None and true.shape == whole.shape:
                self.difference.append(norm(whole.double() - true.double()))
                self.product += float((whole.double() * true.double()).sum())
                self.square += float((whole.double() ** 2).sum())
            yield name, whole


def of_gradient(
    own: Iterable[tuple[str, Tensor]], expected: Tensors, *, tolerance: float
) -> Deviation:
    """Of a compressed gradient from the true one, in fp64.

    Args:
        own: what the strategy left; all of it is taken, since that may be collective.
        expected: what one device had with the same parameters.
        tolerance: of the relative error of each tensor.
    """
    sums = _Sums()
    worst = compare_gradients(sums.along(own, expected), expected, tolerance=tolerance)
    error = _relative(sums, map(norm, expected.values()))
    if sums.broken:
        return Deviation(error=error, comparisons=[_overflow(sums.broken)])
    off = abs(sums.product / sums.square - 1) if sums.square > 0 else math.inf
    length = Comparison(error=off, tolerance=LENGTH_TOLERANCE, where="length of the gradient")
    return Deviation(error=error, comparisons=[worst, length])


def of_way(own: Iterable[tuple[str, Tensor]], reference: Reference) -> Deviation:
    """Of the last parameters, in fp64, relative to how far training moved them."""
    sums = _Sums()
    for _ in sums.along(own, reference.final):
        pass
    error = _relative(sums, reference.moved.values())
    way = Comparison(error=error, tolerance=WAY_TOLERANCE, where="way of the parameters")
    return Deviation(error=error, comparisons=[way])


def _relative(sums: _Sums, sizes: Iterable[float]) -> float:
    size = math.hypot(*sizes)
    return math.hypot(*sums.difference) / size if size else math.inf


def find_odd_numbers(gradients: Iterable[tuple[str, Tensor]]) -> Comparison:
    """Whether a compressed gradient in the case's own precision holds numbers only."""
    broken = [name for name, tensor in gradients if not torch.isfinite(dense(tensor)).all()]
    return _overflow(broken) if broken else Comparison(error=0.0, tolerance=0.0, where="gradient")


def _overflow(names: list[str]) -> Comparison:
    """Of tensors that a compression has broken."""
    where = f"gradient of {names[0]}, no number any more after its compression,"
    return Comparison(error=math.inf, tolerance=0.0, where=where)
