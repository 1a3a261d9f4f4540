"""The scoreboard as a table: what was predicted beside what was measured, with every miss."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from tabulate import tabulate

from bench.records.scaling import Scoreboard, Scored
from bench.report.cells import DASH
from bench.report.markup import escape
from bench.report.prediction_measured import in_brief, study_text

BEGIN, END = "<!-- published: begin -->", "<!-- published: end -->"
"""What stands between them in a page is made anew by ``bench predict score --write``."""
SUMMARY_BEGIN = "<!-- published, in short: begin -->"
SUMMARY_END = "<!-- published, in short: end -->"
"""Likewise, of the first table alone."""
STUDY_BEGIN, STUDY_END = "<!-- measured here: begin -->", "<!-- measured here: end -->"
STUDY_SUMMARY_BEGIN = "<!-- measured here, in short: begin -->"
STUDY_SUMMARY_END = "<!-- measured here, in short: end -->"
"""And of what was measured here."""
NO_STUDY = "No study is published yet."
WORST_POINTS = 10.0
"""Of efficiency, beyond which a row is called a miss."""
MODELS: Sequence[tuple[str, Callable[[Scored], float | None]]] = (
    ("timeline", lambda one: one.predicted),
    ("no overlap", lambda one: one.no_overlap),
    ("full overlap", lambda one: one.full_overlap),
    ("one constant", lambda one: one.constant),
)


def scoreboard(scores: Sequence[Scored]) -> str:
    """Both tables, of published rows: the models side by side, then row by row."""
    return "\n\n".join(part for part in (summary(scores), every_row(scores), notes(scores)) if part)


def summary(scores: Sequence[Scored]) -> str:
    """Mean and worst error of each model, in points of efficiency, table by table."""
    counted = [one for one in scores if one.left_out is None]
    heads = ["table", "rows", *(f"{name}: mean" for name, _ in MODELS), "timeline: worst"]
    body = [
        _line(table, [one for one in counted if one.table == table])
        for table in dict.fromkeys(one.table for one in counted)
    ]
    body.append(_line("all", counted))
    return tabulate(
        body,
        heads,
        tablefmt="github",
        disable_numparse=True,
        colalign=["left", *["right"] * (len(heads) - 1)],
    )


def _line(name: str, scores: Sequence[Scored]) -> list[str]:
    means = [mean_error(scores, read) for _, read in MODELS]
    worst = max(abs(one.predicted - one.measured) for one in scores)
    return [
        escape(name),
        str(len(scores)),
        *(DASH if mean is None else f"{100 * mean:.1f}" for mean in means),
        f"{100 * worst:.1f}",
    ]


def mean_error(scores: Iterable[Scored], read: Callable[[Scored], float | None]) -> float | None:
    """Mean absolute difference of a model from what was measured; None where it says nothing."""
    errors = [abs(said - one.measured) for one in scores if (said := read(one)) is not None]
    return statistics.fmean(errors) if errors else None


def every_row(scores: Sequence[Scored]) -> str:
    """Each row, left out or not, with the error of the timeline in points."""
    heads = ["table", "row", "devices", "measured", *(name for name, _ in MODELS), "error"]
    body = [
        [
            escape(one.table),
            escape(one.row) + (" *" if one.left_out else ""),
            str(one.devices),
            _percent(one.measured),
            *(_percent(read(one)) for _, read in MODELS),
            _error(one),
        ]
        for one in scores
    ]
    return tabulate(
        body,
        heads,
        tablefmt="github",
        disable_numparse=True,
        colalign=["left", "left", *["right"] * (len(heads) - 2)],
    )


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f}%"


def _error(one: Scored) -> str:
    points = 100 * (one.predicted - one.measured)
    text = f"{points:+.1f}"
    return f"**{text}**" if abs(points) > WORST_POINTS else text


def notes(scores: Sequence[Scored]) -> str:
    """What the marks mean, and how many rows miss."""
    counted = [one for one in scores if one.left_out is None]
    misses = [one for one in counted if abs(one.predicted - one.measured) > WORST_POINTS / 100]
    lines = [
        "Efficiency: throughput over that of as many single devices of the same table. Errors are "
        "in points of it, predicted less measured; **bold** beyond "
        f"{WORST_POINTS:.0f}: {len(misses)} of the {len(counted)} rows that count."
    ]
    for reason in dict.fromkeys(one.left_out for one in scores if one.left_out):
        which = dict.fromkeys(f"{one.table}, {one.row}" for one in scores if one.left_out == reason)
        lines.append(f"\\* {escape('; '.join(which))}: {escape(reason)}. Its error is not counted.")
    return "\n\n".join(lines)


def renewed(page: str, scores: Sequence[Scored], boards: Sequence[Scoreboard] | None = None) -> str:
    """A page with the tables that it has places for, made anew.

    Args:
        page: its text.
        scores: of published rows.
        boards: of the study that was measured here; None where there is none.
    """
    page = insert(page, summary(scores), SUMMARY_BEGIN, SUMMARY_END)
    page = insert(page, scoreboard(scores))
    short = NO_STUDY if boards is None else in_brief(boards)
    page = insert(page, short, STUDY_SUMMARY_BEGIN, STUDY_SUMMARY_END)
    whole = NO_STUDY if boards is None else study_text(boards)
    return insert(page, whole, STUDY_BEGIN, STUDY_END)


def insert(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """A page with another text between its two comments; the page itself where it lacks them."""
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}" if found and closed else page
