"""What the trainings of a table show: who came down to the same loss first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.analyze.learning import Race, Reached, race, smoothed
from bench.analyze.rows import Row
from bench.analyze.stats import Estimate
from bench.errors import plural
from bench.plan.case import Case
from bench.report import cells
from bench.report.document import Items, Part, Prose
from bench.report.drawing import Chart
from bench.report.notes import variants
from bench.report.style import Column, grid
from bench.report.tables import Table, named

ABOUT = """\
Learning: each case trained from the start. The loss is that of each step's global batch before the
step, averaged over a twentieth of the steps where losses are compared. Seconds are those of the
steps, the first one's cost included; starting processes, building the model and making batches are
not."""
NOTHING_LEARNT = "No case's loss fell by more than a tenth: there is nothing to compare."


def trained(table: Table) -> list[Row]:
    """The rows that were."""
    return [row for row in table.rows if row.training]


def section(table: Table, charts: Sequence[Chart] = ()) -> list[Part]:
    """Sentences, table and charts; nothing where nothing was trained."""
    rows = trained(table)
    if not rows:
        return []
    found = race(rows)
    caption = f"{table.title}: learning"
    return [
        Prose(ABOUT),
        Items(sentences(table)),
        grid(rows, columns(rows, found), "learning", caption),
        *charts,
    ]


def sentences(table: Table) -> list[str]:
    """What there was to learn, who came down to the same loss first, and who learnt nothing."""
    rows = trained(table)
    if not rows:
        return []
    tasks = dict.fromkeys(row.training[0].task for row in rows)
    texts = [f"What there is to learn: {task}." for task in tasks if task is not None]
    name = _names(table.rows)
    found = race(rows)
    if found is None:
        return [*texts, NOTHING_LEARNT]
    texts.append(first_of(found, name))
    if found.unlearnt:
        texts.append(f"Not learnt: {', '.join(name(row.case) for row in found.unlearnt)}.")
    return texts


def first_of(found: Race, name: Callable[[Case], str]) -> str:
    """Which row came down to the loss first, and by what factor.

    Args:
        found: the comparison.
        name: of a case.
    """
    first, *others = found.reached
    took = f"{cells.significant(first.seconds.value)} s and {plural(first.step, 'step')}"
    what = f"{name(first.row.case)} reached a loss of {found.loss:.3g}"
    later = ", ".join(f"{_factor(one)} for {name(one.row.case)}" for one in others if one.is_clear)
    alike = ", ".join(name(one.row.case) for one in others if not one.is_clear)
    if not others:
        return f"{what} in {took}; nothing else has learnt as much."
    if not alike:
        return f"{what} first: in {took}, against {later}."
    why = "" if first.seconds.launches > 1 else ", since one training each has no interval"
    ending = f"no clear difference from {alike}{why}"
    return f"{what} in {took}{f', against {later}' if later else ''}; {ending}."


def _factor(one: Reached) -> str:
    assert one.ratio is not None, "it is not the first"
    return f"{cells.significant(one.ratio.value)} times as long"


def _names(rows: Sequence[Row]) -> Callable[[Case], str]:
    name = variants(rows)
    return lambda case: f"{name(case)} on {plural(case.world_size, 'device')}"


def columns(rows: Sequence[Row], found: Race | None) -> list[Column]:
    """What the table shows of the rows."""
    reached = {} if found is None else {one.row.case.id: one for one in found.reached}

    def steps(row: Row) -> str:
        one = reached.get(row.case.id)
        return cells.DASH if one is None else f"{one.step:,}"

    def seconds(row: Row) -> str:
        one = reached.get(row.case.id)
        return cells.DASH if one is None else _with_interval(one.seconds)

    mark = "a common loss" if found is None else f"a loss of {found.loss:.3g}"
    return [
        *named(rows),
        Column("global batch", lambda row: f"{row.case.global_batch:,}", is_figure=False),
        Column("learning rate", _rate, is_figure=False),
        Column("steps", lambda row: f"{len(row.training[0].losses):,}", is_figure=False),
        Column("constant prediction", _constant),
        Column("last loss", _last),
        Column(f"steps to {mark}", steps),
        Column(f"seconds to {mark}", seconds),
    ]


def _rate(row: Row) -> str:
    one = row.training[0]
    if one.rate is None:
        return cells.DASH
    scaled = f" (x{one.learning_rate_factor:g})" if one.learning_rate_factor != 1 else ""
    return f"{one.rate:g}{scaled}"


def _constant(row: Row) -> str:
    loss = row.training[0].constant_loss
    return cells.DASH if loss is None else f"{loss:.3g}"


def _last(row: Row) -> str:
    return f"{smoothed(row.training[0].losses)[-1]:.3g}"


def _with_interval(estimate: Estimate) -> str:
    text = cells.significant(estimate.value)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ({cells.significant(estimate.low)}-{cells.significant(estimate.high)})"
