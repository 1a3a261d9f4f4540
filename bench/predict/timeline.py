"""A step as it would go: work on streams, each in its order, that slow each other down.

A stream does one thing after the other, in the order in which it was given them: an accelerator's
compute stream, a communicator's stream. What is begun waits for what it needs. While computation
and communication both go on, both are slower, by the factors of ``Contention``. The simulation goes
from one end of a piece of work to the next; in between all rates are constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from bench.measure.intervals import Interval, total, union, without
from bench.records.profile import Contention

Kind = Literal["computation", "communication"]
NONE = Contention(source="none")
EPSILON_S = 1e-12
"""Less than that is nothing: the last bit of a sum of times."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work."""

    name: str
    kind: Kind
    stream: str
    work_s: float
    """Alone on the machine; of a collective, right behind another one."""
    alone_s: float | None = None
    """Of a collective that finds its stream idle; None for the same."""
    bytes: float = 0.0
    """That this rank puts on the bus in a collective."""
    after: tuple[int, ...] = ()
    """Numbers of the tasks that it needs, all before it in the list."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """When a task was at work."""

    task: Task
    begin_s: float
    end_s: float


class _Running:
    def __init__(self, task: Task, begin_s: float, left_s: float, byte_rate: float) -> None:
        self.task = task
        self.begin_s = begin_s
        self.left_s = left_s
        self.byte_rate = byte_rate


def simulate(tasks: Sequence[Task], contention: Contention | None = None) -> list[Span]:
    """When each task is at work, in the order of the tasks.

    Args:
        tasks: those of one stream begin in the order in which they stand here.
        contention: what overlapping costs; None for nothing.
    """
    slow = contention or NONE
    queues: dict[str, list[int]] = {}
    for number, task in enumerate(tasks):
        assert all(one < number for one in task.after), "a task needs only what stands before it"
        queues.setdefault(task.stream, []).append(number)
    heads = dict.fromkeys(queues, 0)
    idle_since: dict[str, float] = dict.fromkeys(queues, -1.0)
    spans: dict[int, Span] = {}
    running: dict[str, tuple[int, _Running]] = {}
    now = 0.0
    while len(spans) < len(tasks):
        for stream, queue in queues.items():
            if stream not in running and heads[stream] < len(queue):
                number = queue[heads[stream]]
                if all(one in spans for one in tasks[number].after):
                    begun = _begin(tasks[number], now, idle_since[stream], slow.collectives)
                    running[stream] = number, begun
                    heads[stream] += 1
        assert running, "some task needs what can never be done"
        rates = _rates([one for _, one in running.values()], slow)
        step_s = min(one.left_s / rates[one.task.kind] for _, one in running.values())
        now += step_s
        for stream, (number, one) in list(running.items()):
            one.left_s -= step_s * rates[one.task.kind]
            if one.left_s <= EPSILON_S:
                spans[number] = Span(task=one.task, begin_s=one.begin_s, end_s=now)
                idle_since[stream] = now
                del running[stream]
    return [spans[number] for number in range(len(tasks))]


def _begin(task: Task, now: float, idle_since: float, collectives: float) -> _Running:
    """A stream that has just ended something goes on back to back."""
    work_s = task.work_s if task.alone_s is None or idle_since == now else task.alone_s
    if task.kind == "communication":
        work_s *= collectives
    return _Running(task, now, work_s, task.bytes / work_s if work_s > 0 else 0.0)


def _rates(running: Sequence[_Running], slow: Contention) -> dict[Kind, float]:
    """Work done per second of each kind; 1 for what nothing else disturbs."""
    moving = [one for one in running if one.task.kind == "communication"]
    if not moving or len(moving) == len(running):
        return {"computation": 1.0, "communication": 1.0}
    wanted = sum(one.byte_rate for one in moving)
    most = slow.most_bus_bytes_per_s
    communication = 1.0 if most is None or wanted <= most else most / wanted
    # Of each second, what is left by the work of moving as many bytes as are moved in it.
    stolen = slow.stolen_s_per_byte * communication * wanted
    computation = max(1 / slow.computation - stolen, LEAST_RATE)
    return {"computation": computation, "communication": communication}


LEAST_RATE = 0.05
"""Of computation: a scheduler gives each its share, however much the other asks for."""


def length_s(spans: Sequence[Span]) -> float:
    """From the begin of the first to the end of the last."""
    return max((span.end_s for span in spans), default=0.0)


def busy_s(spans: Sequence[Span], kind: Kind) -> float:
    """When at least one task of a kind is at work."""
    return total(_when(spans, kind))


def exposed_s(spans: Sequence[Span]) -> float:
    """When something is communicated and nothing computed."""
    return total(without(_when(spans, "communication"), _when(spans, "computation")))


def _when(spans: Sequence[Span], kind: Kind) -> list[Interval]:
    return union((one.begin_s, one.end_s) for one in spans if one.task.kind == kind)
