"""Whole reports of comparisons: false alarms where nothing differs, and what is found where one
does."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench.analyze.rows import Comparison, Row, Twin
from bench.analyze.stats import Noise, chance_of, noise_of, ratio_of
from bench.analyze.verdicts import judged
from tests.fakes import make_case
from tests.statistics.coverage import ROWS
from tests.statistics.noise import Figures, counting

Draw = Callable[[int], Figures]
"""So many rows of equal cases, with all their launches."""


def verdicts(rows: Figures, others: Sequence[Sequence[float]], pair: Figures) -> list[str]:
    """The words that a report has for each row against another.

    Args:
        rows: figures per launch.
        others: what each is compared with; the same for all, or each its own.
        pair: an equal case, measured twice.
    """
    shared = {id(one): place for place, one in enumerate(others)}
    every = counting([*rows, *others, *pair])
    rows, others, pair = every[: len(rows)], every[len(rows) : -2], every[-2:]
    noise = noise_of([*rows, *(others[place] for place in shared.values()), *pair])
    report = [
        Row(
            case=make_case(seed=seed, world_size=2, strategy="ddp"),
            status="ok",
            peer=_comparison(row, other, noise),
            twin=Twin(comparison=_comparison(pair[0], pair[1], noise)) if seed == 0 else None,
        )
        for seed, (row, other) in enumerate(zip(rows, others, strict=True))
    ]
    return [str(row.peer.verdict) for row in judged(report)]


def _comparison(row: Sequence[float], other: Sequence[float], noise: Noise) -> Comparison:
    return Comparison(ratio=ratio_of(row, other, noise), chance=chance_of(row, other, noise))


def false_alarms(draw: Draw, *, reports: int, shared: bool) -> float:
    """Share of reports on equal cases with any verdict but "no clear difference".

    Args:
        draw: figures of equal cases.
        reports: to make.
        shared: compare all rows with one, as a table does; else each with its own repeat.
    """
    alarms = []
    for _ in range(reports):
        found = draw(ROWS + 3 if shared else 2 * ROWS + 2)
        rows, rest = found[:ROWS], found[ROWS:]
        others = [rest[0]] * ROWS if shared else rest[:ROWS]
        alarms.append(set(verdicts(rows, others, rest[-2:])) != {"no clear difference"})
    return statistics.fmean(alarms)


def power(draw: Draw, *, change: float, reports: int) -> float:
    """Share of reports that find the one row of all which is faster, and by how much it is."""
    found = []
    for _ in range(reports):
        *rows, reference, first, second = draw(ROWS + 3)
        rows[5] = [figure * (1 + change) for figure in rows[5]]
        found.append(verdicts(rows, [reference] * ROWS, [first, second])[5] == "faster")
    return statistics.fmean(found)
