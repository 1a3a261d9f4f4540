"""The same questions asked of launches that were recorded, whose noise nobody made up.

``recorded.json`` holds the throughput of each launch of a run of 23 cases, 20 launches each in
rounds, on a virtual machine with two cores that other tenants share.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from bench.analyze.effort import relative_width
from bench.analyze.stats import figure_of, noise_of
from tests.statistics.coverage import ROWS, by_rule
from tests.statistics.noise import Figures, Generator, counting
from tests.statistics.reports import verdicts_of_pairs

FILE = Path(__file__).parent / "recorded.json"
TARGETS = (0.1, 0.08, 0.06, 0.05, 0.03)
"""The narrowest can be had for few rows with the 20 launches of a case, by rule or by number."""
FIRST = 5
"""Launches that all cases have, as in the suites for careful measurements."""
LOSS = 0.02
"""Of coverage, that the rule may have less."""
SHARE = 2 / 3
"""Of the launches of a fixed number for all, which the rule may take at most."""


def recorded() -> Figures:
    """Figures of each case, in the order of its launches."""
    cases: dict[str, list[float]] = json.loads(FILE.read_text())["samples_per_s"]
    return list(cases.values())


def recorded_false_alarms(reports: int) -> tuple[str, bool]:
    """Reports of 24 rows, each the comparison of a recorded case with itself."""
    random, pool = np.random.default_rng(3), recorded()
    lines, kept = [], True
    for count in (3, 5, 10):
        alarms = []
        for _ in range(reports):
            chosen = random.choice(len(pool), ROWS, replace=True)
            rows: Figures = []
            others: Figures = []
            for index in chosen:
                # Of the same rounds: a pair of a table is measured in turns.
                rounds = random.permutation(len(pool[index]))[: 2 * count]
                rows.append([pool[index][place] for place in sorted(rounds[:count])])
                others.append([pool[index][place] for place in sorted(rounds[count:])])
            places = random.permutation(len(pool[chosen[0]]))[: 2 * count]
            pair = [[pool[chosen[0]][at] for at in part] for part in np.split(places, 2)]
            alarms.append(set(verdicts_of_pairs(rows, others, pair)) != {"no clear difference"})
        share = statistics.fmean(alarms)
        kept = kept and share <= 0.05
        lines.append((count, f"{share:.1%}", "yes" if share <= 0.05 else "NO"))
    headings = ("launches", "reports with a false alarm", "kept")
    return tabulate(lines, headings, tablefmt="github", disable_numparse=True), kept


def effort_table(reports: int) -> tuple[str, bool]:
    """Launches by the rule against a fixed number that brings as many rows to the width.

    Intervals of few launches cover a little less here than those of many, whoever chose their
    number; so the rule's coverage is set against that of a fixed number of as many launches.
    """
    lines, kept = [], True
    for target in TARGETS:
        random = np.random.default_rng(5)
        pools = [_resampled(recorded(), random) for _ in range(max(10, reports // 4))]
        made = [by_rule(pool, interval=target, first=FIRST) for pool in pools]
        ruled = _quality(made, target)
        most = len(pools[0][0])
        by_number = {
            count: _quality([[row[:count] for row in pool] for pool in pools], target)
            for count in range(FIRST, most + 1)
        }
        needed = next((n for n, one in by_number.items() if one.within >= ruled.within), most)
        alike = by_number[round(ruled.launches)]
        good = ruled.launches / needed <= SHARE and ruled.covered >= alike.covered - LOSS
        kept = kept and (good or needed == most)
        lines.append(
            (
                f"± {target:.0%}",
                f"{ruled.launches:.1f}",
                f"{ruled.within:.0%}",
                f"{ruled.covered:.1%}",
                f"{alike.within:.0%}",
                f"{alike.covered:.1%}",
                f"{needed}" + (" (all there are)" if needed == most else ""),
                f"{ruled.launches / needed:.2f}",
            )
        )
    headings = (
        "asked", "launches by the rule", "rows within", "coverage", "as many for all: rows within",
        "coverage", "launches for all", "share of them",
    )  # fmt: skip
    return tabulate(lines, headings, tablefmt="github", disable_numparse=True), kept


def _resampled(pool: Figures, random: Generator) -> Figures:
    """Rounds drawn anew, all cases of a round together, since rounds may move all alike."""
    rounds = random.integers(0, len(pool[0]), len(pool[0]))
    return [[row[place] for place in rounds] for row in pool]


class Quality(NamedTuple):
    """Of many reports."""

    within: float
    """Share of rows whose interval is no wider than asked."""
    covered: float
    """Share that holds the truth: the figure of all recorded launches of the case."""
    launches: float
    """Of a row, on average."""


def _quality(reports: list[Figures], target: float) -> Quality:
    truths = [math.exp(statistics.fmean(map(math.log, row))) for row in counting(recorded())]
    within, covered = [], []
    for rows in reports:
        counted = counting(rows)
        noise = noise_of(counted)
        for row, truth in zip(counted, truths, strict=True):
            estimate = figure_of(row, noise)
            within.append((relative_width(estimate) or 0.0) <= target)
            covered.append(bool(estimate.includes(truth)))
    made = statistics.fmean(len(row) for rows in reports for row in rows)
    return Quality(statistics.fmean(within), statistics.fmean(covered), made)
