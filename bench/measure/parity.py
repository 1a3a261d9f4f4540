"""Proof that a strategy trains the same model as one device does.

Training is chaotic in low precision: sums in another order give other gradients, and after a few
steps another model. So two things are checked, both against the same samples on one device:

* in fp64, the losses of several steps, the first gradient, the parameters and buffers after the
  last step, and that all ranks hold the same parameters: what a correct strategy can only miss by
  rounding in the 16th digit;
* in the case's own precision, the first gradient, tensor by tensor, against what mere reordering
  of the reference's samples does to that tensor; and the step that follows, against the one that a
  plain optimizer takes with that very gradient.

What one device does is in ``bench.measure.reference``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from bench.measure.reference import Reference, Tensors, change, dense, norm

TOLERANCE = 1e-6
"""For fp64. Three ranks of ResNet-152 stay below 3e-9 over four steps."""
FINAL_TOLERANCE = 1e-3
"""For the last fp64 parameters, relative to their way: training amplifies rounding (6e-7 was seen
with three ranks of ResNet-152), while a wrong step is off by tenths, a missing decay by 1e-2."""
SPREAD_FACTOR = 10.0
"""Three reorderings underestimate the largest one; a missing or doubled gradient is off by 1."""
ROUNDINGS = 4.0
"""Least tolerance in units of the precision's rounding: a sum of a few terms."""
DRIFT_FACTOR = 10.0
"""One training that begins a rounding off underestimates the largest way apart."""
MOST_DRIFT, MOST_BUFFER_DRIFT = 0.1, 0.5
"""Of losses and parameters, and of buffers, relative: whatever training makes of roundings, a wrong
step is off by tenths, and a buffer that stays behind by 1. With fused kernels, running variances of
ResNet-152 under AdamW were off by up to 0.39."""
FUSED_FACTOR = 4.0
"""A compiler rounds in other places than torch, forward and backward; one drawing of roundings
underestimates the largest."""
SMALL = 1e-3
"""Share of a typical tensor's size below which a tensor is measured on that size, not its own: a
gradient that is zero but for rounding has no size of its own."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The worst of several relative errors, and what it may be."""

    error: float
    tolerance: float
    where: str
    loosest: float = 0.0
    """Largest tolerance of any tensor of more than negligible size: 1 would prove nothing."""
    drift: float = 0.0
    """What training makes of one rounding, times a safety factor."""

    @property
    def passed(self) -> bool:
        """False for an error that is not a number, too."""
        return self.error <= self.tolerance

    @property
    def may_be_rounding(self) -> bool:
        """Whether it has not passed, and says nothing: one rounding might have come to as much."""
        return self.tolerance < self.error <= self.drift < math.inf

    @property
    def excess(self) -> float:
        """Error in units of what is allowed; infinite for what is not a number."""
        if math.isnan(self.error):
            return math.inf
        if self.tolerance == 0:
            return 0.0 if self.error == 0 else math.inf
        return self.error / self.tolerance

    def __str__(self) -> str:
        off = f"{self.where} is off by {self.error:.1e}"
        if self.may_be_rounding:
            return f"{off}, as training that begins one rounding off may be"
        return f"{off}, {self.tolerance:.1e} is allowed"


def compare_losses(
    losses: list[float],
    reference: Reference,
    steps: slice = slice(None),
    *,
    tolerance: float = TOLERANCE,
) -> Comparison:
    """fp64: the worst relative error among the losses of some steps, all of them unless told."""
    assert len(losses) == len(reference.losses), f"{len(losses)} steps were trained"
    drifts = reference.drift.losses or [0.0] * len(losses)
    triples = [*enumerate(zip(losses, reference.losses, drifts, strict=True), start=1)]
    return worst(
        Comparison(
            error=abs(loss - expected) / abs(expected),
            tolerance=tolerance,
            where=f"loss of step {step}",
            drift=min(MOST_DRIFT, DRIFT_FACTOR * drift / abs(expected)),
        )
        for step, (loss, expected, drift) in triples[steps]
    )


def compare_first(gradients: Iterable[tuple[str, Tensor]], reference: Reference) -> Comparison:
    """fp64: the worst tensor of the first gradient, relative to its size."""
    return compare_gradients(gradients, reference.first, tolerance=TOLERANCE)


def compare_gradients(
    gradients: Iterable[tuple[str, Tensor]], expected: Tensors, *, tolerance: float
) -> Comparison:
    """The worst tensor of a gradient, relative to its size; all of them may be off alike."""
    sizes = {name: norm(gradient) for name, gradient in expected.items()}
    return _compare(gradients, expected, "gradient of", sizes, dict.fromkeys(sizes, tolerance))


def compare_final(parameters: Iterable[tuple[str, Tensor]], reference: Reference) -> Comparison:
    """fp64: the worst tensor of the last parameters, relative to how far training moved it."""
    tolerances = dict.fromkeys(reference.moved, FINAL_TOLERANCE)
    return _compare(
        parameters, reference.final, "parameter", reference.moved, tolerances,
        drifts=reference.drift.final,
    )  # fmt: skip


def compare_buffers(buffers: Iterable[tuple[str, Tensor]], reference: Reference) -> Comparison:
    """fp64: the worst of the first rank's buffers, relative to how far training moved it."""
    tolerances = dict.fromkeys(reference.buffers, FINAL_TOLERANCE)
    return _compare(
        buffers, reference.buffers, "buffer", reference.buffers_moved, tolerances,
        drifts=reference.drift.buffers, most=MOST_BUFFER_DRIFT,
    )  # fmt: skip


def compare_step(
    parameters: Iterable[tuple[str, Tensor]],
    before: Tensors,
    expected: Tensors,
    *,
    rounding: float,
) -> Comparison:
    """The case's precision: the worst tensor of an optimizer step, relative to its way.

    Both have taken it with the same gradient, so that nothing but the optimizer's own arithmetic,
    and the rounding of what it writes, may differ.

    Args:
        parameters: as the strategy has them after the step.
        before: as they were.
        expected: after the step of a plain optimizer.
        rounding: relative rounding error of the parameters' type.
    """
    ways = {name: norm(change(expected[name], before[name])) for name in before}
    scales = _scales(ways)
    tolerances = {
        name: ROUNDINGS * rounding * (1 + (norm(before[name]) / scales[name] if way else 0.0))
        for name, way in ways.items()
    }
    return _compare(parameters, expected, "step of", ways, tolerances)


def compare_native(
    gradients: Iterable[tuple[str, Tensor]],
    reference: Reference,
    *,
    rounding: float,
    by_design: float = 0.0,
    is_compiled: bool = False,
) -> Comparison:
    """The case's precision: the worst tensor of the first gradient, against its own spread.

    Args:
        gradients: what the strategy synchronised.
        reference: what one device had.
        rounding: relative rounding error of the precision that computes, such as 1.2e-7.
        by_design: what the strategy itself may change, relative.
        is_compiled: whether operations were fused, and so round in other places.
    """
    fused = reference.rounding_spread if is_compiled else {}
    sizes = {name: norm(gradient) for name, gradient in reference.native.items()}
    scales = _scales(sizes)
    tolerances = {
        name: SPREAD_FACTOR * reference.spread[name] / scales[name]
        + FUSED_FACTOR * fused.get(name, 0.0) / scales[name]
        + ROUNDINGS * rounding
        + by_design
        for name in sizes
    }
    return _compare(gradients, reference.native, "gradient of", sizes, tolerances)


def _scales(sizes: Mapping[str, float]) -> dict[str, float]:
    """What each tensor's error is relative to: its size, or a share of the typical one."""
    typical = math.sqrt(sum(size**2 for size in sizes.values()) / max(1, len(sizes)))
    return {name: max(size, SMALL * typical) for name, size in sizes.items()}


def _compare(
    own: Iterable[tuple[str, Tensor]],
    expected: Tensors,
    noun: str,
    sizes: Mapping[str, float],
    tolerances: Mapping[str, float],
    *,
    drifts: Mapping[str, float] = MappingProxyType({}),
    most: float = MOST_DRIFT,
) -> Comparison:
    """The worst of all tensors, taken one by one; all of them are taken, since that is collective.

    Args:
        own: name and value, as the strategy has them.
        expected: as one device has them.
        noun: what they are, for the message.
        sizes: norms that errors are relative to.
        tolerances: of the relative errors.
        drifts: norms of what training makes of one rounding.
        most: that this may excuse, relative.
    """
    scales = _scales(sizes)
    found: list[Comparison] = []
    missing = set(expected)
    for name, tensor in own:
        missing.discard(name)
        if name not in expected or tensor.shape != expected[name].shape:
            found.append(_incomparable(f"{noun} {name}, which one device does not have like this,"))
            continue
        whole = dense(tensor.detach()).to("cpu", expected[name].dtype)
        difference = norm(change(whole, expected[name]))
        found.append(
            Comparison(
                error=difference / scales[name] if scales[name] else difference,
                tolerance=tolerances[name],
                where=f"{noun} {name}",
                loosest=tolerances[name] if sizes[name] >= scales[name] else 0.0,
                drift=min(most, DRIFT_FACTOR * drifts.get(name, 0.0) / (scales[name] or 1.0)),
            )
        )
    found += [
        _incomparable(f"{noun} {name}, which the strategy does not have,") for name in missing
    ]
    return worst(found)


def _incomparable(where: str) -> Comparison:
    return Comparison(error=math.inf, tolerance=0.0, where=where)


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    """The one that exceeds its tolerance by most, with the loosest tolerance of them all."""
    every = list(comparisons)
    worst_one = max(every, key=lambda one: (not (one.passed or one.may_be_rounding), one.excess))
    return replace(worst_one, loosest=max(one.loosest for one in every))


def digest(tensors: Iterable[Tensor]) -> str:
    """Short hash of the bits of some tensors: equal only where all of them are."""
    state = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous().flatten()
        state.update(plain.view(torch.uint8).numpy().data)
    return state.hexdigest()
