"""Which of a run's rows to use on so many devices of so much memory, and how sure that is.

Only rows that were measured, on exactly that number of devices, and proved to train as one device
does are eligible: nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.analyze.others import measured_against, unusable
from bench.analyze.rows import Comparison, Row, family
from bench.analyze.stats import Noise, holm, noise_of
from bench.analyze.verdicts import noise_floor, verdict_of
from bench.errors import plural
from bench.plan.case import Case

GIB = 2**30
NEEDS: Mapping[bool, tuple[str, ...]] = {
    True: ("resident", "tensor"),
    False: ("driver", "reserved", "tensor"),
}
"""Whether a device is a CPU's cores -> peaks that must fit, the most honest first."""
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
        if best is None or best.samples_per_s is None:
            return None
        fewer = [
            row
            for row in self.rows
            if row.case.world_size < self.devices and _why_not(row, None) is None
        ]
        fastest = max(fewer, key=_rate, default=None)
        return fastest if fastest and _rate(fastest) >= best.samples_per_s.value else None


def recommend(
    rows: Sequence[Row], *, devices: int | None = None, memory_bytes: float | None = None
) -> list[Answer]:
    """An answer for each workload of a run, in the order of its rows.

    Args:
        rows: of one run.
        devices: to be used; None for as many as were measured at most.
        memory_bytes: of each device; None for no limit.
    """
    noise = noise_of(row.figures for row in rows if row.figures)
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(_problem(row.case), []).append(row)
    return [_answer(group, devices, memory_bytes, noise) for group in groups.values()]


def _problem(case: Case) -> object:
    """Equal for cases that train the same: what strategies and settings change is free."""
    size = case.global_batch if case.scaling == "strong" else None
    data = str((case.data, case.data_options))
    return family(case), case.optimizer, data, case.seed, case.cores_per_device, size


def _answer(rows: list[Row], asked: int | None, memory_bytes: float | None, noise: Noise) -> Answer:
    sizes = sorted({row.case.world_size for row in rows if row.samples_per_s is not None})
    planned = max(row.case.world_size for row in rows)
    devices = asked or max(sizes, default=planned)
    eligible, ruled_out = [], []
    for row in rows:
        if row.case.world_size != devices:
            continue
        reason = _why_not(row, memory_bytes)
        if reason is None:
            eligible.append(row)
        else:
            ruled_out.append(RuledOut(row=row, reason=reason))
    eligible.sort(key=_rate, reverse=True)
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
        leads=_leads(eligible, noise, noise_floor(rows, devices)),
        ruled_out=ruled_out,
        measured_on=sizes,
    )


def _rate(row: Row) -> float:
    return 0.0 if row.samples_per_s is None else row.samples_per_s.value


def _leads(eligible: Sequence[Row], noise: Noise, floor: float | None) -> list[Comparison]:
    """The first one against each of the others, with verdicts.

    Which row is the first was seen in the same figures. So all pairs are counted among which it
    could have been, those not looked at as if nothing spoke for a difference.
    """
    if len(eligible) < 2:
        return []
    best, *others = eligible
    found = [measured_against(best, row, noise) for row in others]
    unseen = len(others) * (len(others) - 1) // 2
    chances = holm([*(1.0 if one.chance is None else one.chance for one in found), *[1.0] * unseen])
    return [
        one
        if one.chance is None or one.ratio is None
        else msgspec.structs.replace(one, verdict=verdict_of(one.ratio, chance, floor))
        for one, chance in zip(found, chances, strict=False)
    ]


def need_of(row: Row) -> Need | None:
    """The memory that a row takes; None where it was not measured."""
    for kind in NEEDS[row.case.device == "cpu"]:
        known = [peak for peak in row.peaks.get(kind, []) if peak is not None and peak > 0]
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
