"""How wrong predictions were: published rows, in efficiency; and what errors to expect."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from bench.predict.published import Point, points
from bench.records.scaling import Scored

LOADER = "bound by its loader, as its source says: predicted is what communication alone would give"
ONE_PROCESS = "one process drives all devices: what its Python and its threads cost is not modelled"
INTERVAL = (10.0, 90.0)
"""Percentiles of the errors between which a prediction's band lies: eight in ten."""


def published_scores(found: Sequence[Point] | None = None) -> list[Scored]:
    """Every published row that there is a model of, in the order of the tables.

    Args:
        found: the rows; None for all, predicted anew.
    """
    rows = points() if found is None else found
    constants = {table: _constant(rows, table) for table in {one.table for one in rows}}
    return [
        Scored(
            table=one.table,
            row=_row(one),
            strategy=one.strategy,
            devices=one.prediction.places.ranks,
            measured=one.measured,
            predicted=one.predicted,
            no_overlap=one.no_overlap,
            full_overlap=one.full_overlap,
            constant=constants[one.table],
            left_out=LOADER
            if one.bound_by_loader
            else ONE_PROCESS
            if one.strategy == "dp"
            else None,
        )
        for one in rows
    ]


def _row(one: Point) -> str:
    cap = one.prediction.case.options.get("bucket_cap_mb")
    return f"{one.row} {cap} MB" if cap else one.row


def _constant(rows: Iterable[Point], table: str) -> float | None:
    """The efficiency with the least mean error on all other tables: the median of theirs."""
    others = [one.measured for one in rows if one.table != table and not one.bound_by_loader]
    return statistics.median(others) if others else None


def expected_errors(scores: Iterable[Scored]) -> dict[str, tuple[float, float]]:
    """By strategy, (how much less, how much more) throughput may be than predicted, as shares.

    Between the percentiles of ``INTERVAL`` of measured over predicted. Under the empty name, that
    of all rows that count: for strategies that no row was published of. A strategy that is left out
    for what its model lacks has the error that it has.

    Args:
        scores: of efficiencies.
    """
    rows = [one for one in scores if one.left_out != LOADER]
    groups = {
        name: [one for one in rows if one.strategy == name]
        for name in {one.strategy for one in rows}
    }
    groups[""] = [one for one in rows if one.left_out is None]
    return {name: _band(some) for name, some in groups.items() if some}


def _band(scores: Iterable[Scored]) -> tuple[float, float]:
    ratios = [one.measured / one.predicted for one in scores]
    low, high = np.percentile(ratios, INTERVAL)
    return float(max(1 - low, 0.0)), float(max(high - 1, 0.0))
