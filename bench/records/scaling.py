"""Steps that were predicted, and how far off they were where that could be checked.

Never mixed with records of what was measured: a file of its own, and a flag on each row.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bench.plan.case import Case
from bench.records.record import SCHEMA, Communication, Phases, Record, Throughput, Timing

PREDICTIONS = "predictions.jsonl"
PREDICTED = "predicted"
"""Flag of every row that was computed and not measured."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work in a step of one rank."""

    name: str
    kind: Literal["computation", "communication"]
    stream: str
    begin_s: float
    end_s: float
    bytes: float = 0.0
    """That the rank puts on the bus."""


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one case, computed. What charts and reports are made from."""

    schema: int = SCHEMA
    case: Case
    hosts: int
    step_s: float
    single_step_s: float
    """Of one device without a wrapper."""
    samples_per_s: float
    speedup: float
    computed_s: float
    """Of the step, while something is computed."""
    communicated_s: float
    """While something is communicated."""
    exposed_s: float
    """While nothing is computed meanwhile."""
    no_overlap_s: float
    full_overlap_s: float
    error_low: float | None = None
    """By how much less throughput may be, as a share of it: from the scoreboard; None where no
    error is known."""
    error_high: float | None = None
    """And by how much more."""
    moments: list[Moment] = []

    @property
    def efficiency(self) -> float:
        """Speedup over the number of devices."""
        return self.speedup / self.case.world_size


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that was measured, here or by others, beside what was predicted of it.

    Of published rows, efficiencies; of what was measured here, seconds of a step.
    """

    table: str
    row: str
    strategy: str
    devices: int
    measured: float
    predicted: float
    no_overlap: float
    """By the model that hides nothing."""
    full_overlap: float
    """By the model that hides all that it can."""
    constant: float | None = None
    """Of published rows: the best efficiency that is one for all, fitted to the other tables."""
    left_out: str | None = None
    """Why its error does not count, in words; None where it does."""


class Regret(msgspec.Struct, frozen=True, kw_only=True):
    """Cases that differ in the cap of their buckets alone: what taking the predicted one costs."""

    group: str
    predicted_best: str
    """Label of the case that is quickest by prediction."""
    measured_best: str
    cost: float
    """Of its measured step, over the quickest one's: 0 where it is the quickest."""


class Scoreboard(msgspec.Struct, frozen=True, kw_only=True):
    """What a study that was measured here says of the predictions."""

    fitted_on: str | None = None
    """Link whose cells two numbers were fitted to; None where nothing was."""
    scores: list[Scored]
    regrets: list[Regret]
    under_twice: int
    """Cells that count, whose communication takes less than twice their computation: beyond, every
    model is right."""


def as_record(one: Predicted, *, run_id: str, environment: str, unit: str, units: int) -> Record:
    """The row in the shape of all rows, flagged as predicted.

    Args:
        one: what was predicted.
        run_id: of the file.
        environment: fingerprint of where it was computed.
        unit: of the workload.
        units: of a sample.
    """
    return Record(
        run_id=run_id,
        launch=0,
        pass_="timing",
        case=one.case,
        status="ok",
        timing=Timing(
            launch_s=None,
            setup_s=[0.0],
            first_step_s=[None],
            warmup_step_s=[[]],
            step_s=[[one.step_s]],
            block_steps=1,
            window_s=[one.step_s],
            stopped_by="min_steps",
        ),
        throughput=Throughput(samples_per_s=one.samples_per_s, unit=unit, units_per_sample=units),
        phases=_phases(one),
        communication=Communication(exposed_s=one.exposed_s, busy_s=one.communicated_s),
        flags=[PREDICTED],
        environment=environment,
    )


def _phases(one: Predicted) -> Phases:
    """From the begin of the first piece of a phase to that of the next phase's."""
    begins = {
        phase: min((m.begin_s for m in one.moments if m.name.startswith(phase)), default=None)
        for phase in ("forward", "backward", "optimizer")
    }
    forward = begins["forward"] or 0.0
    backward = forward if begins["backward"] is None else begins["backward"]
    optimizer = one.step_s if begins["optimizer"] is None else begins["optimizer"]
    return Phases(
        data_s=forward,
        forward_s=max(backward - forward, 0.0),
        backward_s=max(optimizer - backward, 0.0),
        optimizer_s=max(one.step_s - optimizer, 0.0),
    )
