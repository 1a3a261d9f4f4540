"""Progress for people: a line for each launch, with an estimate of the time left."""

from __future__ import annotations

import contextlib
from typing import TextIO

from bench.errors import one_line
from bench.plan.case import Case
from bench.records.record import Record


class Lines:
    """Writes to a stream; readable in a terminal and in a log file alike.

    Args:
        stream: usually stderr, so that results can be piped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def started(self, steps: int, left_s: float, budget_s: float) -> None:
        """See ``rounds.Progress``."""
        more = f", and up to {duration(budget_s)} for wide intervals" if budget_s else ""
        self.say(f"{steps} launches, about {duration(left_s)} to go{more}")

    def widened(self, cases: int, launches: int, left_s: float) -> None:
        """See ``rounds.Progress``."""
        what = "1 interval is" if cases == 1 else f"{cases} intervals are"
        more = "1 more launch" if launches == 1 else f"{launches} more launches"
        self.say(f"{what} wider than asked: {more}, about {duration(left_s)}")

    def finished(self, record: Record, *, done: int, steps: int, left_s: float) -> None:
        """See ``rounds.Progress``."""
        case = record.case
        what = f"{case.workload}:{case.preset} {case.label}{_settings(case)} x{case.world_size}"
        left = f"{duration(left_s)} left" if done < steps else "done"
        self.say(f"[{done}/{steps}] {what}  {record.pass_}  {_result(record)}  {left}")

    def say(self, text: str) -> None:
        """Write one line; a terminal that is gone is no reason to stop."""
        with contextlib.suppress(OSError):
            self._stream.write(one_line(text) + "\n")
            self._stream.flush()


def _settings(case: Case) -> str:
    """What a suite may vary and a strategy's label does not say."""
    parts = [
        case.precision if case.precision != "fp32" else "",
        case.compile if case.compile != "none" else "",
        case.compile_scope if case.compile_scope != "outside" else "",
        f"{case.accumulation_steps} micro-steps" if case.accumulation_steps > 1 else "",
        f"seed {case.seed}" if case.seed else "",
        f"{case.nodes} hosts" if case.nodes > 1 else "",
        case.link or "",
        "twin" if case.twin else "",
    ]
    return "".join(f", {part}" for part in parts if part)


def _result(record: Record) -> str:
    if record.status != "ok":
        return f"{record.status.upper()}: {record.reason}"
    if record.throughput is not None:
        rate = record.throughput.samples_per_s * record.throughput.units_per_sample
        number = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        return f"launch {record.launch + 1}: {number} {record.throughput.unit}s/s"
    if record.parity is not None:
        reason = f" ({record.parity.reason})" if record.parity.reason else ""
        return f"{record.parity.verdict.replace('_', ' ')}{reason}"
    if record.communication is not None and record.communication.sync_cost_s is not None:
        cost_s = record.communication.sync_cost_s
        if cost_s <= 0:
            return "synchronisation costs less than noise"
        return f"synchronisation costs {cost_s * 1e3:.3g} ms a step"
    return "ok"


def duration(seconds: float) -> str:
    """Seconds in words that suit an estimate.

    >>> duration(75), duration(7300)
    ('1 min 15 s', '2 h 2 min')
    """
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
