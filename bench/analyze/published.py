"""What others have published, read from a file among the records: figures, each with its source.

They stand beside our rows, and never among them: nothing here makes a ``Row``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Annotated, Any

import msgspec
import yaml

from bench.analyze.rows import Row
from bench.plan.case import Case

FILE = "published.yaml"
PER_DEVICE = "per device"
"""In a unit: the figures are of one device, and not of all together."""

Devices = Annotated[int, msgspec.Meta(ge=1)]
Figure = Annotated[float, msgspec.Meta(gt=0)]
ByDevices = dict[Devices, Figure]


class Dataset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an epoch is said to go through."""

    name: str
    samples: Devices


class Rung(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One more setting of a published ladder."""

    step: str
    throughput: Figure
    memory_gb: Figure


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several tables that share an entry: what is its own."""

    workload: str | None = None
    hardware: str | None = None
    precision: str | None = None
    loader: str | None = None
    note: str | None = None
    throughput: ByDevices = {}
    no_ddp: Figure | None = None
    ddp: ByDevices = {}


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item of the file. Units stand in the names, or in ``unit``; absent is not published."""

    id: str
    source: str
    hardware: str | None = None
    workload: str | None = None
    input: str | None = None
    dataset: Dataset | None = None
    software: dict[str, str] = {}
    strategy: str | None = None
    options: dict[str, Any] = {}
    precision: str | None = None
    scaling: str | None = None
    per_device_batch: Devices | None = None
    global_batch: Devices | None = None
    accumulation_steps: Devices = 1
    unit: str | None = None
    throughput: ByDevices = {}
    epoch_s: ByDevices = {}
    speedup_as_published: ByDevices = {}
    peak_memory_gb_per_device: ByDevices = {}
    peak_memory_gb_per_device_note: str | None = None
    note: str | None = None
    rows: list[Line] = []
    ladder: list[Rung] = []
    bucket_25_to_1_mb_change_percent_at_p75: dict[str, dict[Devices, float]] = {}
    step_s: dict[str, Figure] = {}
    collective: str | None = None
    devices: Devices | None = None
    """Of a curve."""
    dtype: str | None = None
    payload_mb: Figure | None = None
    time_ms: dict[str, Figure] = {}
    payload_bytes: list[Devices] = []
    time_us: list[Figure] = []
    busbw_gb_s: list[Figure] = []
    busbw_gb_s_at_8gib_by_devices: ByDevices = {}
    step_ms_single: dict[str, Figure] = {}
    step_ms_by_bucket_cap_mb: dict[int, Figure] = {}
    sync_cost_ms_by_bucket_cap_mb: dict[int, Figure] = {}
    step_ms_serial: Figure | None = None
    allreduce_alone_ms: Figure | None = None
    memory_gib: dict[str, float | str] = {}


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """A published table of throughput by number of devices."""

    entry: Entry
    workload: str
    strategy: str
    hardware: str
    precision: str | None
    unit: str
    throughput: ByDevices
    """Of all devices, or of each, as ``is_per_device`` says."""
    no_wrapper: float | None = None
    """Of one device without any."""
    loader: str | None = None
    note: str | None = None

    @property
    def is_per_device(self) -> bool:
        """Whether figures are of one device each."""
        return PER_DEVICE in self.unit

    @property
    def sizes(self) -> list[int]:
        """Numbers of devices with any figure."""
        entry = self.entry
        found = {*self.throughput, *entry.epoch_s, *entry.peak_memory_gb_per_device}
        return sorted(found)

    def speedup(self, devices: int) -> float | None:
        """Over the same on one device, from the throughput; None without both.

        >>> from bench.analyze.published import scaling_tables
        >>> round(scaling_tables()[0].speedup(4), 2)  # 592 / 156
        3.79
        """
        figure, one = self.throughput.get(devices), self.throughput.get(1)
        if figure is None or one is None:
            return None
        return figure / one * (devices if self.is_per_device else 1)


@functools.cache
def entries() -> tuple[Entry, ...]:
    """All of the file that comes with the package."""
    text = (resources.files("bench.records") / FILE).read_text(encoding="utf-8")
    return tuple(msgspec.convert(yaml.safe_load(text), list[Entry]))


@functools.cache
def scaling_tables() -> tuple[Scaling, ...]:
    """Every published table of throughput over devices."""
    return tuple(table for entry in entries() for table in _tables(entry))


def _tables(entry: Entry) -> Iterator[Scaling]:
    own = Line(throughput=entry.throughput)
    for line in entry.rows or ([own] if entry.throughput else []):
        yield Scaling(
            entry=entry,
            workload=line.workload or entry.workload or "",
            strategy=entry.strategy or ("ddp" if line.ddp else "not named"),
            hardware=line.hardware or entry.hardware or "hardware not named",
            precision=line.precision or entry.precision,
            unit=entry.unit or "",
            throughput=line.throughput or line.ddp,
            no_wrapper=line.no_ddp,
            loader=line.loader,
            note=line.note or entry.note,
        )


def curves(collective: str) -> list[Entry]:
    """Published bus bandwidths of a collective by payload."""
    return [one for one in entries() if one.collective == collective and one.busbw_gb_s]


def matching(rows: Sequence[Row]) -> list[Scaling]:
    """Published tables of the model, the batch rule and a strategy that some rows have.

    Args:
        rows: of one of our tables.
    """
    own = {(_model(row.case.workload), row.case.scaling, row.case.strategy) for row in rows}
    return [
        table
        for table in scaling_tables()
        if any(
            table.workload.lower() == workload
            and table.strategy == strategy
            and table.entry.scaling in {None, scaling}
            for workload, scaling, strategy in own
        )
    ]


def _model(workload: str) -> str:
    """A workload's own name, of those that are named with their module, too."""
    return workload.rpartition(":")[2].lower()


def beside(table: Scaling, rows: Sequence[Row]) -> Mapping[int, Row]:
    """Our row on each number of devices that a published table has, by that number.

    The same strategy, precision and micro-steps, nothing compiled; of several, the one with the
    published options, else the one with plain options.
    """
    found: dict[int, Row] = {}
    for devices in table.sizes:
        alike = [row for row in rows if _is_like(row.case, table, devices)]
        alike.sort(key=lambda row: (not has_options(row.case, table), len(row.case.label)))
        if alike:
            found[devices] = alike[0]
    return found


def _is_like(case: Case, table: Scaling, devices: int) -> bool:
    return (
        case.strategy == table.strategy
        and case.world_size == devices
        and case.precision == (table.precision or case.precision)
        and case.accumulation_steps == table.entry.accumulation_steps
        and case.compile == "none"
        and not case.activation_checkpointing
        and (case.label == case.strategy or has_options(case, table))
    )


def has_options(case: Case, table: Scaling) -> bool:
    """Whether a case has the published options, and no other that differs from its default."""
    wanted = table.entry.options
    is_alike = all(case.options.get(name) == value for name, value in wanted.items())
    return is_alike and case.label.count("=") == len(wanted)
