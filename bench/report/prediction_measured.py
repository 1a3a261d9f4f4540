"""The scoreboard of what was measured here: errors of steps, and of the best cap."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from bench.errors import plural
from bench.records.scaling import Regret, Scoreboard, Scored
from bench.report.markup import escape

MODELS: Sequence[tuple[str, Callable[[Scored], float]]] = (
    ("timeline", lambda one: one.predicted),
    ("no overlap", lambda one: one.no_overlap),
    ("full overlap", lambda one: one.full_overlap),
)
MILLI = 1e3


class Promise(NamedTuple):
    """Largest relative errors of a strategy's steps that the project strives for."""

    median: float
    mean: float
    nine_in_ten: float
    worst: float


NONE = float("inf")
PROMISED = {
    "ddp": Promise(median=0.03, mean=NONE, nine_in_ten=0.06, worst=0.10),
    "fsdp": Promise(median=NONE, mean=0.06, nine_in_ten=NONE, worst=0.12),
}
WANTED, WANTED_UNDER_TWICE = 40, 15
"""Cells that count, and of these such with communication under twice their computation."""
PROMISED_CAP = 0.03
"""More than the measured best cap, that the predicted best one may cost."""


def study_text(boards: Sequence[Scoreboard]) -> str:
    """All of a study: with nothing fitted, every cell; where two numbers were fitted, in short."""
    parts = []
    for board in boards:
        if board.fitted_on is None:
            parts.append(
                "**Nothing is fitted**: what overlap costs was measured with each profile."
            )
            parts.append(measured_board(board.scores, board.regrets, under_twice=board.under_twice))
            continue
        parts += [
            "**Two numbers of each model are fitted** to its cells over "
            f"{escape(board.fitted_on)}, which count in neither table: what a byte on the bus "
            "takes of computation, and how long collectives take in a step next to their curves.",
            errors(board.scores),
            promises(board.scores, board.regrets),
        ]
    return "\n\n".join(part for part in parts if part)


def in_brief(boards: Sequence[Scoreboard]) -> str:
    """Errors alone, with nothing fitted."""
    plain = next(board for board in boards if board.fitted_on is None)
    parts = [in_short(plain.scores, plain.under_twice), errors(plain.scores)]
    return "\n\n".join(part for part in [*parts, promises(plain.scores, plain.regrets)] if part)


def measured_board(scores: Sequence[Scored], regrets: Sequence[Regret], *, under_twice: int) -> str:
    """One board: in short, by strategy and model; then cap by cap, and cell by cell."""
    parts = [in_short(scores, under_twice), errors(scores), promises(scores, regrets)]
    return "\n\n".join(part for part in [*parts, caps(regrets), cells(scores)] if part)


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
    if len(counted) < WANTED or under_twice < WANTED_UNDER_TWICE:
        text += f" Too few: at least {WANTED} and {WANTED_UNDER_TWICE} are striven for."
    if 0 < len(counted) < len(scores):
        found = _off(scores, lambda one: one.predicted)
        text += (
            f" Over all {len(scores)} the timeline is off by {found.median:.1%} in the median, by "
            f"{found.nine_in_ten:.1%} at most in nine of ten, and by {found.worst:.1%} at worst."
        )
    return text


def errors(scores: Sequence[Scored]) -> str:
    """Relative errors of steps, for each strategy and model; nothing where no cell counts."""
    counted = [one for one in scores if one.left_out is None]
    body = []
    for strategy in dict.fromkeys(one.strategy for one in counted):
        some = [one for one in counted if one.strategy == strategy]
        for name, read in MODELS:
            percents = [f"{100 * one:.1f}%" for one in _off(some, read)]
            body.append([escape(strategy), name, str(len(some)), *percents])
    heads = ["strategy", "model", "cells", "median", "mean", "nine in ten within", "worst"]
    return _table(body, heads, texts=2) if body else ""


def _off(scores: Sequence[Scored], read: Callable[[Scored], float]) -> Promise:
    """Relative errors of a model, in the order of the table's columns."""
    off = [abs(read(one) / one.measured - 1) for one in scores]
    return Promise(
        median=statistics.median(off),
        mean=statistics.fmean(off),
        nine_in_ten=float(np.percentile(off, 90)),
        worst=max(off),
    )


def promises(scores: Sequence[Scored], regrets: Sequence[Regret]) -> str:
    """What is striven for, and where it is missed; nothing where no cell counts."""
    counted = [one for one in scores if one.left_out is None]
    lines = []
    for strategy, promised in PROMISED.items():
        some = [one for one in counted if one.strategy == strategy]
        if not some:
            continue
        found = _off(some, lambda one: one.predicted)
        bounds = [
            (name.replace("_", " "), bound, is_)
            for name, bound, is_ in zip(Promise._fields, promised, found, strict=True)
            if bound < NONE
        ]
        wanted = ", ".join(f"{name} {bound:.0%}" for name, bound, _ in bounds)
        missed = [f"{name} is {is_:.1%}" for name, bound, is_ in bounds if is_ > bound]
        kept = f"missed: {', '.join(missed)}" if missed else "kept"
        lines.append(f"- {escape(strategy)}, at most {wanted}: {kept}.")
    if regrets:
        worst = max(one.cost for one in regrets)
        kept = "kept" if worst <= PROMISED_CAP else "missed"
        lines.append(
            f"- The predicted best cap costs at most {PROMISED_CAP:.0%} more than the measured "
            f"best: {kept}, {worst:.1%} at most."
        )
    return "\n".join(["What is striven for:", "", *lines]) if lines else ""


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
