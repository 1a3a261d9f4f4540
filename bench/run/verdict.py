"""What training for a proof showed, and the verdict on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.measure import parity
from bench.measure.deviation import LOSS_TOLERANCE, Deviation
from bench.measure.parity import Comparison
from bench.measure.reference import Reference
from bench.records.record import Parity, Verdict
from bench.run.rank import Rank, proof_size
from bench.strategies.nature import Exactness, Rhythm

IS_ROUGH = 1e-3
"""Tolerance of a gradient from which its proof is no longer called exact."""
COMPRESSED = 1e-9
"""Least relative error of a gradient in fp64 that went through a narrow type, or lost a part."""
PROVES_NOTHING = 0.5
"""Tolerance that would let a halved gradient pass."""


@dataclass(kw_only=True)
class Shown:
    """What training in fp64 showed on one rank."""

    losses: list[float] = field(default_factory=list)
    """Of each step, mean over the ranks."""
    first: Comparison | None = None
    """The first gradient; None where that is inexact by design."""
    compressed: Deviation | None = None
    """The first gradient of a lossy strategy's own kind; None for others."""
    final: Comparison | None = None
    """The last parameters; None where they are inexact by design."""
    buffers: Comparison | None = None
    """Those of the first rank after the last step; None on the others, where there are none, and
    where parameters are inexact by design."""
    way: Deviation | None = None
    """Likewise; None where they are exact."""
    divergence: dict[int, float] = field(default_factory=dict)
    """Largest difference of any parameter between ranks, after some numbers of steps."""

    @property
    def last_divergence(self) -> float:
        """After the last step; 0 for one process."""
        return list(self.divergence.values())[-1] if self.divergence else 0.0


def verdict(rank: Rank, shown: Shown, native: list[Comparison], reference: Reference) -> Parity:
    """Put together what fp64 and the case's own precision showed.

    Args:
        rank: whose view this is.
        shown: in fp64.
        native: in the case's own precision: the first gradient, the step with it, and more.
        reference: that was compared with.
    """
    exactness, rhythm, precision = rank.exactness, rank.rhythm, rank.case.precision
    exact_steps = None if exactness.kind == "exact" else rhythm.settle_steps
    same = _same(shown, reference, exact_steps)
    later = None
    if exact_steps is not None:
        after = slice(exact_steps + 1, None)
        allowed = LOSS_TOLERANCE + _swing(reference.losses)
        later = parity.compare_losses(shown.losses, reference, after, tolerance=allowed)
    compared = [same, shown.final, shown.buffers, later, *_deviations(shown)]
    off = [one for one in compared if one is not None and not one.passed]
    drifted = [one for one in off if one.may_be_rounding]
    problems = [f"fp64: {one}" for one in off if not one.may_be_rounding]
    problems += [f"fp64: {one}" for one in apart(shown, exactness, rhythm)]
    is_whole = shown.compressed is not None and shown.compressed.error < COMPRESSED
    if is_whole and not exactness.may_keep_all:
        problems.append("fp64: the gradient is exact after compression: nothing was compressed")
    problems += [f"{precision}: {one}" for one in native if not one.passed]
    reason = "; ".join(problems) or "; ".join(f"fp64: {one}" for one in drifted) or None
    if reason is None and is_whole:
        reason = (
            "the gradient that was looked at is exact after compression: it has no more directions "
            "than are kept, or its matrices are too small to be compressed"
        )
    if reason is None and exact_steps is None and native[0].loosest >= PROVES_NOTHING:
        reason = (
            f"exact in fp64; in {precision}, reordering alone may move a gradient by "
            f"{native[0].loosest:.1f} times its size, so that nothing more can be shown"
        )
    return Parity(
        verdict="failed" if problems else _good(exactness, native[0], drifted=bool(drifted)),
        reason=reason,
        error=_finite(same.error),
        tolerance=same.tolerance,
        gradient_error=_finite(native[0].error),
        gradient_tolerance=_finite(native[0].loosest),
        max_rank_divergence=_finite(shown.last_divergence),
        gradient_deviation=_stated(shown.compressed),
        loss_deviation=_finite(later.error) if later is not None else None,
        parameter_deviation=_stated(shown.way),
        exact_steps=exact_steps,
        reference=rank.strategy.reference(rank.options),
        steps=len(shown.losses),
        per_device_batch=proof_size(rank.case)[1],
    )


def _same(shown: Shown, reference: Reference, exact_steps: int | None) -> Comparison:
    """The worst of what is the same on one device: all, or what the exact steps have left."""
    steps = slice(None if exact_steps is None else exact_steps + 1)
    losses = parity.compare_losses(shown.losses, reference, steps)
    return parity.worst([losses] if shown.first is None else [losses, shown.first])


def _swing(losses: list[float]) -> float:
    """How much losses change by, relative to the least of them."""
    return (max(losses) - min(losses)) / min(map(abs, losses))


def _deviations(shown: Shown) -> Iterator[Comparison]:
    for one in (shown.compressed, shown.way):
        if one is not None:
            yield from one.comparisons


def apart(shown: Shown, exactness: Exactness, rhythm: Rhythm) -> Iterator[str]:
    """Where ranks differ that should not, or are equal although they train apart."""
    for steps, difference in shown.divergence.items():
        if exactness.kind != "local":
            if difference != 0:
                yield f"ranks ended with parameters up to {difference:.1e} apart"
        elif steps <= rhythm.settle_steps or rhythm.ends_round(steps):
            if difference != 0:
                yield f"after {steps} steps ranks are {difference:.1e} apart, and should be equal"
        elif difference == 0:
            yield f"after {steps} steps ranks are equal, and should train apart"


def _good(exactness: Exactness, native: Comparison, *, drifted: bool) -> Verdict:
    if exactness.kind != "exact":
        return "lossy_by_design"
    return "within_precision" if drifted or native.loosest >= IS_ROUGH else "exact"


def _stated(deviation: Deviation | None) -> float | None:
    return None if deviation is None else _finite(deviation.error)


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
