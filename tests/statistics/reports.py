"""Whole reports of comparisons: false alarms where nothing differs, and what is found where one
does. They are made by the code that makes tables, from records whose figures were drawn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from bench.analyze.ranking import rankings
from bench.analyze.rows import Comparison, Row, Twin
from bench.analyze.scaling import rows_of
from bench.analyze.stats import Noise, chance_of, noise_of, ratio_of
from bench.analyze.verdicts import judged
from bench.plan.case import Case, identify
from bench.records.record import Record
from tests.analyze.test_scaling import timing
from tests.fakes import make_case
from tests.statistics.coverage import ROWS
from tests.statistics.noise import Figures, counting

Draw = Callable[[int], Figures]
"""So many rows of equal cases, with all their launches."""
NOTHING = "no clear difference"
ONE = make_case()
PEER = make_case(strategy="ddp", world_size=2)
TWIN = identify(msgspec.structs.replace(PEER, twin=True, id=""))
SPEEDUP = 1.8


def variant(number: int) -> Case:
    """DDP with another bucket size."""
    return make_case(
        strategy="ddp",
        world_size=2,
        options={"bucket_cap_mb": number + 1},
        label=f"ddp(bucket_cap_mb={number + 1})",
    )


VARIANTS = [variant(number) for number in range(ROWS)]


class Alarms(NamedTuple):
    """Shares of reports on equal rows that say something else."""

    tables: float
    """With a verdict against plain DDP."""
    rankings: float
    """With a row that is called slower than the one with the highest figure."""


def report(rows: Figures, peer: Sequence[float], twin: Sequence[float] | None) -> list[Row]:
    """The rows of a report; one device, much slower, is there too.

    Args:
        rows: figures per launch, of variants of DDP.
        peer: of plain DDP.
        twin: of its repeat, where there is one.
    """
    drawn = [*zip(VARIANTS, rows, strict=True), (PEER, peer)]
    drawn += [(TWIN, twin)] if twin is not None else []
    # One device's launches scatter as the peer's do, in another order.
    drawn.append((ONE, [figure / SPEEDUP for figure in rotated(peer)]))
    return rows_of([], _by_rounds(drawn))


def verdicts(found: Sequence[Row]) -> list[str]:
    """What a report says of each variant against plain DDP."""
    ids = {case.id for case in VARIANTS}
    return [str(row.peer.verdict) for row in found if row.case.id in ids]


def rotated(figures: Sequence[float]) -> list[float]:
    """The same figures, each a launch later."""
    return [*figures[1:], figures[0]]


def _by_rounds(drawn: Sequence[tuple[Case, Sequence[float]]]) -> list[Record]:
    rounds = max(len(figures) for _, figures in drawn)
    return [
        timing(case, figures[launch], launch)
        for launch in range(rounds)
        for case, figures in drawn
        if launch < len(figures)
    ]


def false_alarms(draw: Draw, *, reports: int, with_twin: bool = True) -> Alarms:
    """How many reports on equal rows find a difference.

    Args:
        draw: figures of equal cases.
        reports: to make.
        with_twin: whether the noise floor is known.
    """
    tables, ranks = [], []
    for _ in range(reports):
        *rows, peer, twin = draw(ROWS + 2)
        found = report(rows, peer, twin if with_twin else None)
        tables.append(set(verdicts(found)) != {NOTHING})
        ranks.append(any(one.behind for one in rankings(found)))
    return Alarms(statistics.fmean(tables), statistics.fmean(ranks))


def power(draw: Draw, *, change: float, reports: int) -> float:
    """Share of reports that find the one row of all which is faster, and by how much it is."""
    found = []
    for _ in range(reports):
        *rows, peer, twin = draw(ROWS + 2)
        rows[5] = [figure * (1 + change) for figure in rows[5]]
        found.append(verdicts(report(rows, peer, twin))[5] == "faster")
    return statistics.fmean(found)


def verdicts_of_pairs(rows: Figures, others: Figures, pair: Figures) -> list[str]:
    """Likewise, where each row is compared with another of its own: recorded cases with themselves.

    A table has one reference for all; so these comparisons are made here, and judged as there.
    """
    every = counting([*rows, *others, *pair])
    noise = noise_of(every)
    count = len(rows)
    twin = _comparison(every[-2], every[-1], noise)
    report = [
        Row(
            case=case,
            status="ok",
            peer=_comparison(row, other, noise),
            twin=Twin(comparison=twin) if case is VARIANTS[0] else None,
        )
        for case, row, other in zip(VARIANTS, every[:count], every[count : 2 * count], strict=True)
    ]
    return [str(row.peer.verdict) for row in judged(report)]


def _comparison(row: Sequence[float], other: Sequence[float], noise: Noise) -> Comparison:
    return Comparison(ratio=ratio_of(row, other, noise), chance=chance_of(row, other, noise))
