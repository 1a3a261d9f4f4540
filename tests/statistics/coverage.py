"""How often an interval holds the truth, with a fixed number of launches and with the rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.analyze.effort import relative_width, too_wide
from bench.analyze.launches import drift_of, noisy_rows
from bench.analyze.stats import figure_of, noise_of, ratio_of
from bench.plan.case import Effort
from tests.statistics.noise import (
    MOST,
    Figures,
    Generator,
    Kind,
    counting,
    drift_line,
    figures,
    launches,
)

ROWS = 24
FIRST = 3
"""Launches before the rule decides anything."""


@dataclass(kw_only=True)
class Tally:
    """What many simulated reports gave."""

    figure: list[bool] = field(default_factory=list)
    """Whether each row's interval held the truth."""
    ratio: list[bool] = field(default_factory=list)
    """Likewise of its ratio to the row before."""
    flagged: list[bool] = field(default_factory=list)
    """Whether the row was called noisy or drifting."""
    widths: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @property
    def covered(self) -> float:
        """Share of figures whose interval held the truth."""
        return statistics.fmean(self.figure)

    @property
    def ratio_covered(self) -> float:
        """Share of ratios whose interval held the truth."""
        return statistics.fmean(self.ratio)

    @property
    def flagged_share(self) -> float:
        """Share of rows with a flag."""
        return statistics.fmean(self.flagged)

    def add(self, rows: Figures, truth: float, watched: int | None = None) -> None:
        """Analyse one report as the report itself would.

        Args:
            rows: of the report.
            truth: logarithm that each row's figure means to be.
            watched: count only so many rows, the first.
        """
        made = launches(rows)
        noisy, drift = noisy_rows(made), drift_of(made.values())
        rows = counting(rows)
        noise = noise_of(rows)
        for index, row in enumerate(rows if watched is None else rows[:watched]):
            estimate = figure_of(row, noise)
            self.figure.append(bool(estimate.includes(math.exp(truth))))
            self.flagged.append(str(index) in noisy or (drift is not None and drift.is_clear))
            self.widths.append(relative_width(estimate) or 0.0)
            self.counts.append(len(row))
            # Each with the next: pairs that share a row would be right or wrong together.
            self.ratio.append(bool(ratio_of(row, rows[index - 1], noise).includes(1.0)))


def fixed(kind: Kind, random: Generator, *, count: int, reports: int) -> Tally:
    """As many launches for all rows."""
    tally = Tally()
    for _ in range(reports):
        tally.add(figures(kind.draw(random, ROWS, count)), kind.truth, kind.watched)
    return tally


def adaptive(kind: Kind, random: Generator, *, interval: float, reports: int) -> Tally:
    """Launches by the rule; drift goes on through all rounds that there may be."""
    tally = Tally()
    for _ in range(reports):
        logs = kind.draw(random, ROWS, MOST)
        rows = by_rule(figures(logs), interval=interval)
        # The truth of a run that drifted is its middle.
        visited = max(map(len, rows))
        drifted = float(np.mean(drift_line(MOST)[:visited])) if kind.drifts else 0.0
        tally.add(rows, kind.truth + drifted, kind.watched)
    return tally


def by_rule(pool: Sequence[Sequence[float]], *, interval: float, first: int = FIRST) -> Figures:
    """The launches of a pool that the rule would make, in the pool's order.

    Args:
        pool: figures of each row, more than will be needed.
        interval: relative half width that is asked for.
        first: launches that all rows have.
    """
    names = [str(index) for index in range(len(pool))]
    counts = dict.fromkeys(names, first)
    efforts = {
        name: Effort(launch_interval=interval, max_launches=len(row))
        for name, row in zip(names, pool, strict=True)
    }
    while True:
        now = [row[: counts[name]] for name, row in zip(names, pool, strict=True)]
        wanted = too_wide(launches(now), efforts)
        if not wanted:
            return [list(row) for row in now]
        for name in wanted:
            counts[name] += 1
