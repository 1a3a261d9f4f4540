"""Progress for people: a line for each launch, with an estimate of the time left."""

from __future__ import annotations

from typing import TextIO

from bench.records.record import Record


class Lines:
    """Writes to a stream; readable in a terminal and in a log file alike.

    Args:
        stream: usually stderr, so that results can be piped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def started(self, steps: int, left_s: float) -> None:
        """See ``rounds.Progress``."""
        self._line(f"{steps} launches, about {duration(left_s)}")

    def finished(self, record: Record, *, done: int, steps: int, left_s: float) -> None:
        """See ``rounds.Progress``."""
        case = record.case
        what = f"{case.workload}:{case.preset} {case.label} x{case.world_size}"
        left = f"{duration(left_s)} left" if done < steps else "done"
        self._line(f"[{done}/{steps}] {what}  {record.pass_}  {_result(record)}  {left}")

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def _result(record: Record) -> str:
    if record.status != "ok":
        return f"{record.status.upper()}: {record.reason}"
    if record.throughput is not None:
        rate = record.throughput.samples_per_s * record.throughput.units_per_sample
        return f"launch {record.launch + 1}: {rate:,.4g} {record.throughput.unit}s/s"
    if record.parity is not None:
        reason = f" ({record.parity.reason})" if record.parity.reason else ""
        return f"{record.parity.verdict}{reason}"
    if record.communication is not None and record.communication.sync_cost_s is not None:
        return f"synchronisation costs {record.communication.sync_cost_s * 1e3:.3g} ms a step"
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
