"""Which of a run's rows to use on so many devices of so much memory, and how sure that is.

Only rows that were measured, on exactly that number of devices, and proved to train as one device
does are eligible: nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.analyze.others import unusable
from bench.analyze.ranking import (
    Group,
    fastest_on_fewer,
    floor_of,
    leads,
    place,
    problem,
    rate,
)
from bench.analyze.rows import Comparison, Row
from bench.errors import plural

GIB = 2**30
NEEDS: Mapping[bool, tuple[str, ...]] = {
    True: ("resident", "tensor"),
    False: ("driver", "reserved", "tensor"),
}
"""Whether a device is a CPU's cores -> peaks that must fit, the most honest first."""
SAVES = 0.1
"""Share of another row's memory that a row must save for it to be more than noise."""
PROVED = frozenset({"exact", "within_precision"})


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that a row takes of the device that needs most."""

    kind: str
    """Of ``analyze.rows.PEAKS``."""
    bytes: int


class RuledOut(msgspec.Struct, frozen=True, kw_only=True):
    """A row that is not eligible."""

    row: Row
    reason: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What to use for one workload."""

    rows: list[Row]
    """Of the workload, on any number of devices."""
    devices: int
    is_asked: bool
    """Whether the number of devices was asked for: else it is the largest that was measured."""
    eligible: list[Row]
    """The fastest first; empty where there is no answer."""
    leads: list[Comparison]
    """The first one's throughput over that of each of the others, in their order."""
    ruled_out: list[RuledOut]
    measured_on: list[int]
    """Numbers of devices with a figure."""

    @property
    def fastest(self) -> Row | None:
        """By its figure."""
        return self.eligible[0] if self.eligible else None

    @property
    def tied(self) -> list[Row]:
        """Rows that noise does not tell from the fastest."""
        pairs = zip(self.eligible[1:], self.leads, strict=True)
        return [row for row, lead in pairs if lead.verdict != "faster"]

    @property
    def best(self) -> Row | None:
        """The choice: of the fastest and its equals, the one with the fewest settings.

        A setting that brings nothing that noise would not explain is not worth having.
        """
        return min(
            [*self.eligible[:1], *self.tied], key=lambda row: len(row.settings), default=None
        )

    @property
    def runner_up(self) -> Row | None:
        """The fastest of the others."""
        return next((row for row in self.eligible if row is not self.best), None)

    @property
    def unchanged(self) -> Row | None:
        """The fastest in fp32 with the smallest batch of all, where the choice is another."""
        best = self.best
        least = min((row.case.global_batch for row in self.eligible), default=0)
        if best is None or (best.case.precision, best.case.global_batch) == ("fp32", least):
            return None
        plain = [row for row in self.eligible if row.case.precision == "fp32"]
        return next((row for row in plain if row.case.global_batch == least), None)

    @property
    def with_less(self) -> Row | None:
        """A row on fewer devices that did at least as much, if there is one: the fastest."""
        best = self.best
        if best is None:
            return None
        return fastest_on_fewer(best, [row for row in self.rows if _why_not(row, None) is None])


def recommend(
    rows: Sequence[Row], *, devices: int | None = None, memory_bytes: float | None = None
) -> list[Answer]:
    """An answer for each workload of a run, and each speed of its links, in the order of its rows.

    Args:
        rows: of one run.
        devices: to be used; None for as many as were measured at most.
        memory_bytes: of each device; None for no limit.
    """
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(problem(row.case), []).append(row)
    answers = [
        _answer(some, devices, memory_bytes)
        for group in groups.values()
        for some in _by_place(group, devices)
    ]
    chosen = [answer for answer in answers if answer.eligible]
    every = leads(
        [Group(rows=one.eligible, floor=floor_of(one.eligible[0].case, rows)) for one in chosen],
        rows,
    )
    known = dict(zip(map(id, chosen), every, strict=True))
    return [msgspec.structs.replace(one, leads=known.get(id(one), [])) for one in answers]


def _size(rows: Sequence[Row], asked: int | None) -> int:
    """Devices to be used: the most on which anything was measured, unless asked for."""
    sizes = [row.case.world_size for row in rows if row.samples_per_s is not None]
    return asked or max(sizes, default=max(row.case.world_size for row in rows))


def _by_place(rows: list[Row], asked: int | None) -> list[list[Row]]:
    """The rows of a problem once for each place in which so many devices are.

    Those on fewer devices of one host, which have no link, go with each.
    """
    size = _size(rows, asked)
    places = dict.fromkeys(place(row.case) for row in rows if row.case.world_size == size)
    return [
        [
            row
            for row in rows
            if place(row.case) == one or (row.case.nodes == 1 and row.case.world_size != size)
        ]
        for one in places
    ] or [rows]


def _answer(rows: list[Row], asked: int | None, memory_bytes: float | None) -> Answer:
    devices = _size(rows, asked)
    eligible, ruled_out = [], []
    for row in rows:
        if row.case.world_size != devices:
            continue
        reason = _why_not(row, memory_bytes)
        if reason is None:
            eligible.append(row)
        else:
            ruled_out.append(RuledOut(row=row, reason=reason))
    eligible.sort(key=rate, reverse=True)
    if eligible:
        own = eligible[0].environment
        ruled_out += [
            RuledOut(row=row, reason="measured in another environment than the fastest")
            for row in eligible
            if row.environment != own
        ]
        eligible = [row for row in eligible if row.environment == own]
    return Answer(
        rows=rows,
        devices=devices,
        is_asked=asked is not None,
        eligible=eligible,
        leads=[],
        ruled_out=ruled_out,
        measured_on=sorted({row.case.world_size for row in rows if row.samples_per_s is not None}),
    )


def need_of(row: Row) -> Need | None:
    """The most memory that a row took in any launch; None where it was not measured."""
    return _need(row, row.peaks)


def usual_need_of(row: Row) -> Need | None:
    """What it took in the median launch, to be compared with others: a maximum is of one."""
    return _need(row, row.usual_peaks)


def _need(row: Row, peaks: Mapping[str, Sequence[int | None]]) -> Need | None:
    for kind in NEEDS[row.case.device == "cpu"]:
        known = [peak for peak in peaks.get(kind, []) if peak is not None and peak > 0]
        if known:
            return Need(kind=kind, bytes=max(known))
    return None


def _why_not(row: Row, memory_bytes: float | None) -> str | None:
    """Why a row is not eligible; None where it is."""
    reason = unusable(row)
    if reason == "not measured":
        return row.status.replace("_", " ") + (f": {row.reason}" if row.reason else "")
    if reason is not None:
        return reason
    if "unequal_environments" in row.flags:
        return "launches in different environments"
    if row.parity is None or row.parity.verdict == "not_checked":
        return f"not proved: {row.parity_note or 'no proof was made'}"
    if row.parity.verdict not in PROVED:
        return "lossy by design: it trains on other gradients than one device would"
    if "reference_implementation" in row.flags:
        return "no code of torch's: what was measured is a reference of the algorithm"
    return None if memory_bytes is None else _too_large(row, memory_bytes)


def _too_large(row: Row, memory_bytes: float) -> str | None:
    need = need_of(row)
    if need is None:
        return "its memory is not known"
    if need.bytes <= memory_bytes:
        return None
    return f"needs {need.bytes / GIB:.3g} GiB of {memory_bytes / GIB:.3g} GiB ({need.kind} memory)"


def no_answer(answer: Answer) -> str:
    """Why there is no choice for a workload."""
    if answer.ruled_out:
        return f"none of {plural(len(answer.ruled_out), 'row')} on {answer.devices} is eligible"
    sizes = ", ".join(map(str, answer.measured_on)) or "no number of devices"
    return (
        f"nothing was measured on {plural(answer.devices, 'device')}, only on {sizes}; what was not"
        " measured is not extrapolated"
    )
