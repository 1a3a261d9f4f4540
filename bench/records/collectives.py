"""The row of one collective alone: one line of ``collectives.jsonl``.

Rules as for the record: numbers are finite or null, and readers ignore fields they do not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from bench.records.lines import iterate_lines, place_of
from bench.records.numbers import AtLeastOne, Bytes, Rate, Seconds
from bench.records.record import SCHEMA, Status

COLLECTIVES = "collectives.jsonl"


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of one size on some ranks, or the reason why there is no figure of it.

    ``algbw = bytes / median_s``; ``busbw`` is that times the factor of the operation, so that it
    compares with a link's rate: NVIDIA's nccl-tests, doc/PERFORMANCE.md. Bytes a second; one rank
    has no bus.
    """

    schema: Annotated[int, msgspec.Meta(ge=1)] = SCHEMA
    run_id: str
    op: str
    backend: str
    device: str
    """Type of the device that holds the tensors."""
    dtype: str
    world_size: AtLeastOne
    nodes: AtLeastOne = 1
    """Hosts that the ranks are spread over."""
    link: str | None = None
    """Speed of the emulated hosts' links."""
    bytes: Bytes
    """As nccl-tests counts them: of the whole output of an all-gather, of the whole input of a
    reduce-scatter, and of all that a rank sends in an all-to-all."""
    status: Status
    reason: str | None = None
    flags: list[str] = []
    carried_by: str | None = None
    """Name that the backend which carried it gives itself."""
    median_s: Seconds | None = None
    """Of one call alone, all ranks having started it together, on the slowest rank."""
    low_s: Seconds | None = None
    """A tenth of the calls took less."""
    high_s: Seconds | None = None
    """A tenth of them took more."""
    algbw_bytes_per_s: Rate | None = None
    busbw_bytes_per_s: Rate | None = None
    back_to_back_s: Seconds | None = None
    """Of one call in a row of them, on the slowest rank: median of the rows."""
    back_to_back_busbw_bytes_per_s: Rate | None = None
    isolated_s: list[list[Seconds]] | None = None
    """Every call alone, per rank."""
    row_s: list[list[Seconds]] | None = None
    """Every row of calls, per rank."""
    row_calls: AtLeastOne | None = None
    """Calls in a row."""

    @property
    def key(self) -> tuple[str, str, str, str, int, int, int, str | None]:
        """What is compared with nothing unlike."""
        place = (self.world_size, self.nodes, self.bytes, self.link)
        return (self.op, self.backend, self.device, self.dtype, *place)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank sent to another while all others were quiet."""

    source: Annotated[int, msgspec.Meta(ge=0)]
    target: Annotated[int, msgspec.Meta(ge=0)]
    bytes_per_s: Rate
    round_trip_s: Seconds
    """Of a small message."""


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """Every ordered pair of some ranks."""

    backend: str
    hosts: list[str]
    """Of each rank."""
    pairs: list[Pair]
    link: str | None = None
    """Speed of the emulated hosts' links."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A rate to compare collectives with, measured in the same run.

    Of one way of moving bytes: an operation that moves them in another way may pass it.
    """

    what: str
    """``memory copy``, ``loopback`` or ``device to device``."""
    ranks: AtLeastOne
    """That did it at the same time."""
    bytes_per_s: Rate
    """Of each of them; what is sent while as much is received counts once."""


def holds_collectives(folder: Path) -> bool:
    """Whether a folder is one of ``bench comm``."""
    return place_of(folder, COLLECTIVES) is not None


def iterate_collectives(folder: Path) -> Iterator[Collective]:
    """The rows of a folder, as ``iterate_records`` reads records.

    Raises:
        RecordsError: no such folder, or no rows in it.
    """
    return iterate_lines(folder, COLLECTIVES, Collective, _fault_of)


def _fault_of(row: Collective) -> str | None:
    if row.status == "ok" and not row.median_s:
        return "a collective that succeeded, without its time"
    lists = {"isolated_s": row.isolated_s, "row_s": row.row_s}
    for name, values in lists.items():
        if values is not None and len(values) != row.world_size:
            return f"{name} is of {len(values)} ranks, world_size {row.world_size}"
    return None
