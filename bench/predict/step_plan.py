"""Tasks of a step that are being put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.measure.collectives import bus_factor
from bench.predict.network import Network, Places, cost
from bench.predict.timeline import Kind, Task

COMPUTE, COMM = "compute", "communication"


class Plan:
    """Tasks that are being put together.

    Args:
        network: that carries the collectives.
        places: of the ranks.
    """

    def __init__(self, network: Network, places: Places) -> None:
        self.network = network
        self.places = places
        self.tasks: list[Task] = []

    def compute(self, name: str, seconds: float, after: Sequence[int] = ()) -> int:
        """Computation behind all that was planned before; returns its number."""
        return self._add(name, "computation", COMPUTE, after, work_s=seconds)

    def communicate(  # noqa: PLR0913 - each known by its name
        self,
        name: str,
        op: str,
        size: float,
        after: Sequence[int],
        *,
        stream: str = COMM,
        places: Places | None = None,
        calls: int = 1,
        share: float = 1.0,
    ) -> int:
        """A collective, or several equal ones in a row, or a share of one; returns its number."""
        among = places or self.places
        one = cost(self.network, op, size, among)
        return self._add(
            name,
            "communication",
            stream,
            after,
            work_s=share * calls * one.in_row_s,
            alone_s=share * (one.alone_s + (calls - 1) * one.in_row_s),
            bytes=share * calls * size * (bus_factor(op.partition(":")[0], among.ranks) or 0.0),
        )

    def _add(self, name: str, kind: Kind, stream: str, after: Sequence[int], **told: Any) -> int:
        self.tasks.append(Task(name=name, kind=kind, stream=stream, after=tuple(after), **told))
        return len(self.tasks) - 1


def numbered(name: str, micro_step: int) -> str:
    """The name of a task of one of several micro-steps.

    >>> numbered("forward", 0), numbered("forward", 1)
    ('forward', 'forward (micro-step 2)')
    """
    return name if micro_step == 0 else f"{name} (micro-step {micro_step + 1})"
