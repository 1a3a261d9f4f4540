"""The scoreboard of what was measured here: errors of steps, and of the best cap."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np
from tabulate import tabulate

from bench.errors import plural
from bench.records.scaling import Regret, Scored
from bench.report.markup import escape

MODELS: Sequence[tuple[str, Callable[[Scored], float]]] = (
    ("timeline", lambda one: one.predicted),
    ("no overlap", lambda one: one.no_overlap),
    ("full overlap", lambda one: one.full_overlap),
)
MILLI = 1e3


def measured_board(scores: Sequence[Scored], regrets: Sequence[Regret], *, under_twice: int) -> str:
    """All of it: in short, by strategy and model; then cap by cap, and cell by cell."""
    parts = [in_short(scores, under_twice), errors(scores), caps(regrets), cells(scores)]
    return "\n\n".join(part for part in parts if part)


def in_short(scores: Sequence[Scored], under_twice: int) -> str:
    """How many cells there are, and why some do not count."""
    counted = [one for one in scores if one.left_out is None]
    text = (
        f"{plural(len(scores), 'cell')}, of which {len(counted)} count and "
        f"{under_twice} have communication under twice their computation."
    )
    for reason in dict.fromkeys(one.left_out for one in scores if one.left_out):
        number = sum(one.left_out == reason for one in scores)
        text += f" Left out: {number}, {escape(reason)}."
    return text


def errors(scores: Sequence[Scored]) -> str:
    """Relative errors of steps, for each strategy and model; nothing where no cell counts."""
    counted = [one for one in scores if one.left_out is None]
    body = []
    for strategy in dict.fromkeys(one.strategy for one in counted):
        some = [one for one in counted if one.strategy == strategy]
        for name, read in MODELS:
            off = [abs(read(one) / one.measured - 1) for one in some]
            figures = (
                statistics.median(off),
                statistics.fmean(off),
                float(np.percentile(off, 90)),
                max(off),
            )
            percents = [f"{100 * one:.1f}%" for one in figures]
            body.append([escape(strategy), name, str(len(some)), *percents])
    heads = ["strategy", "model", "cells", "median", "mean", "nine in ten within", "worst"]
    return _table(body, heads, texts=2) if body else ""


def caps(regrets: Sequence[Regret]) -> str:
    """What it costs to take the cap that is predicted to be the best."""
    body = [
        [
            escape(one.group),
            escape(one.predicted_best),
            escape(one.measured_best),
            f"{100 * one.cost:.1f}%",
        ]
        for one in regrets
    ]
    heads = ["cells", "predicted best", "measured best", "costs"]
    return _table(body, heads, texts=3) if body else ""


def cells(scores: Sequence[Scored]) -> str:
    """Every cell, those that do not count marked."""
    body = [
        [
            escape(one.table),
            escape(one.row) + (" *" if one.left_out else ""),
            str(one.devices),
            f"{MILLI * one.measured:.4g}",
            *(f"{MILLI * read(one):.4g}" for _, read in MODELS),
            f"{100 * (one.predicted / one.measured - 1):+.1f}%",
        ]
        for one in scores
    ]
    heads = ["cell", "case", "devices", "measured, ms", *(name for name, _ in MODELS), "error"]
    return _table(body, heads, texts=2)


def _table(body: Sequence[Sequence[str]], heads: Sequence[str], *, texts: int) -> str:
    alignment = ["left"] * texts + ["right"] * (len(heads) - texts)
    return tabulate(
        body, heads, tablefmt="github", disable_numparse=True, colalign=alignment if body else None
    )
