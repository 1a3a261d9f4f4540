"""The chart of what a step is spent on: its phases, and communication in it. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.analyze.rhythm import period_of
from bench.analyze.rows import Row
from bench.report.drawing import Looks
from bench.report.lanes import finish, lanes_figure, mark_gap, stack

PHASES = {"data": "#bbbbbb", "forward": "#88ccee", "backward": "#4477aa", "optimizer": "#ccbb44"}
SELDOM = "more, in the steps that synchronise"
EXPOSED, HIDDEN = "communication that nothing hides", "communication under computation"
WAIT, REST = "wait for late ranks", "rest of the profiled step"
COMMUNICATION = {EXPOSED: "#d55e00", HIDDEN: "#e69f00", WAIT: "#cc79a7", REST: "#dddddd"}
THICK = 0.6
"""Of a lane, for the phases; communication has the rest."""
PHASES_LABEL = (
    "ms of a step on the slowest process: medians of its phases,\nor means where steps are unlike"
)
BOTH_LABEL = (
    "ms of a step. Upper bar: its phases on the slowest process, medians,\n"
    "or means where steps are unlike; lower bar: communication\n"
    "in a profiled step, which the profile may slow"
)


def phases_of(row: Row) -> dict[str, float]:
    """Milliseconds of each phase; empty where they are not known."""
    if row.phases is None:
        return {}
    parts = {phase: getattr(row.phases, f"{phase}_s") * 1e3 for phase in PHASES}
    if period_of(row.case) > 1 and row.step_mean_s is not None:
        # Earlier versions kept medians of these as well, which know nothing of one step in eight.
        parts[SELDOM] = max(0.0, row.step_mean_s * 1e3 - sum(parts.values()))
    return parts


def communication_of(row: Row) -> dict[str, float]:
    """Milliseconds of a profiled step, parted by what went on; empty where that is not known.

    Exposed and hidden communication are of the rank with the longest exposed, waiting of the rank
    that waits longest: where they are more than the step together, nothing is left for the rest.
    """
    found = row.communication
    if found is None or found.busy_s is None or found.exposed_s is None:
        return {}
    exposed_s = max(0.0, found.exposed_s)
    parts = {
        EXPOSED: exposed_s,
        HIDDEN: max(0.0, found.busy_s - exposed_s),
        WAIT: max(0.0, found.wait_s or 0.0),
    }
    parts[REST] = max(0.0, (found.profiled_step_s or 0.0) - sum(parts.values()))
    return {name: seconds * 1e3 for name, seconds in parts.items()}


def has_phases(row: Row) -> bool:
    """Whether it is known what the row's step is spent on."""
    return row.phases is not None and not row.is_proved_wrong


def step_figure(rows: Sequence[Row]) -> Any:
    """The phases of each row's step, and under them the communication in it."""
    looks = Looks(rows)
    insides = {
        row.case.id: {} if "communication_contradicts" in row.flags else communication_of(row)
        for row in rows
    }
    label = BOTH_LABEL if any(insides.values()) else PHASES_LABEL
    figure, axes, lanes = lanes_figure(rows, looks, label)
    for lane in lanes:
        row = lane.row
        if not has_phases(row):
            mark_gap(axes, lane)
            continue
        inside = insides[row.case.id]
        share = THICK if inside else 1.0
        stack(
            axes,
            lane.part(0, share),
            phases_of(row),
            {**PHASES, SELDOM: "#882255"},
            said=lane.name,
            unit="ms",
        )
        if inside:
            place = lane.part(THICK + 0.04, 1)
            stack(axes, place, inside, COMMUNICATION, said=lane.name, unit="ms")
    finish(figure, axes, order=[*PHASES, SELDOM, *COMMUNICATION])
    return figure
