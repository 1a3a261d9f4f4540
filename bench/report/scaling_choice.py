"""A recommendation that rests on predictions, in words."""

from __future__ import annotations

from collections.abc import Sequence

from bench.errors import plural
from bench.records.scaling import Predicted

GIGABIT = 1e9 / 8


def choice_of(
    ranked: Sequence[Predicted],
    tied: Sequence[str],
    flips_at_bytes_per_s: float | None,
    flips_to: str | None,
) -> str:
    """What is quickest, what is as good, and when another strategy would be.

    Args:
        ranked: from the quickest to the slowest.
        tied: labels that no difference to the first can be told of.
        flips_at_bytes_per_s: rate of the links at which another strategy becomes the quickest.
        flips_to: which.
    """
    best = ranked[0]
    low = best.samples_per_s * (1 - (best.error_low or 0.0))
    high = best.samples_per_s * (1 + (best.error_high or 0.0))
    devices = plural(best.case.world_size, "device")
    lines = [
        f"Predicted, not measured: {best.case.label} on {devices}, {best.samples_per_s:,.4g} "
        f"samples a second ({low:,.4g} to {high:,.4g}), efficiency {100 * best.efficiency:.1f} %, "
        f"{1e3 * best.exposed_s:.3g} ms of {1e3 * best.step_s:.4g} ms exposed."
    ]
    if tied:
        lines.append(f"As good within the error of predictions: {', '.join(tied)}.")
    if flips_at_bytes_per_s is None or flips_to is None:
        lines.append(
            "No other strategy is quicker at a thousandth to a thousand times the links' rate."
        )
    else:
        rate = flips_at_bytes_per_s / GIGABIT
        lines.append(f"Over links of about {rate:,.3g} Gbit/s it would be {flips_to}.")
    lines += [
        f"{number}. {one.case.label}: {1e3 * one.step_s:.4g} ms, {one.samples_per_s:,.4g} a second"
        for number, one in enumerate(ranked, start=1)
    ]
    return "\n".join(lines)
