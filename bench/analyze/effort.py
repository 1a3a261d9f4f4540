"""Which cases need more launches: decided between rounds, from what has been measured so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.analyze.launches import Launch, counted
from bench.analyze.stats import Estimate, figure_of, noise_of
from bench.plan.case import Effort


def relative_width(estimate: Estimate) -> float | None:
    """Half the interval of a figure over the figure; None without an interval."""
    half = estimate.half_width
    return None if half is None else half / estimate.value


def cases_in_need(
    launches: Mapping[str, Sequence[Launch]], efforts: Mapping[str, Effort]
) -> list[str]:
    """Cases whose interval is wider than asked and that may have more launches, the widest first.

    Args:
        launches: of the run so far, by the case's id.
        efforts: what each case may have; those not named may have nothing more.
    """
    figures = counted(launches)
    noise = noise_of(figures.values())
    excess: dict[str, float] = {}
    for id_, effort in efforts.items():
        values = figures.get(id_, ())
        if not 2 <= len(values) < effort.max_launches:
            continue
        width = relative_width(figure_of(values, noise))
        if width is not None and width > effort.launch_interval:
            excess[id_] = width / effort.launch_interval
    return sorted(excess, key=lambda id_: -excess[id_])
