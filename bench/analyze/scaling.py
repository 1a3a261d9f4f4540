"""Records -> rows: one for each planned case, with its speedup or the reason why it has none.

A speedup compares like with like only: the same model, batch rule, precision, compile mode,
optimizer, cores and environment. Both baselines are kept: one device without any wrapper, and the
same strategy on one device.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from bench.analyze.checks import derived_flags
from bench.analyze.stats import (
    Estimate,
    mean_of_launches,
    median_of_differences,
    percentile,
    ratio_of_means,
)
from bench.plan.case import Case
from bench.records.record import (
    BROKEN_FLAGS,
    Communication,
    Parity,
    Phases,
    Record,
    Status,
)

BASELINE = "single"
BUCKET_OPTION = "bucket_cap_mb"

PEAKS = {
    "tensor": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "driver": "peak_driver_bytes",
    "resident": "peak_process_bytes",
}
"""What a peak is of, in a word, and its field in the record; the most telling first."""

OWN_FIELDS = ("strategy", "options", "backend", "accumulation_steps")
"""What "the same strategy on one device" must share beyond what all baselines do."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio of throughputs, or why there is none."""

    ratio: Estimate | None = None
    reason: str | None = None
    is_baseline: bool = False
    """The row is what others are compared with: 1 by definition."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a table says of one case."""

    case: Case
    status: Status
    """Of the timing launches: ok if any succeeded, else the last one's."""
    reason: str | None = None
    samples_per_s: Estimate | None = None
    environment: str | None = None
    """Fingerprint of where the figure was measured."""
    unit: str = "sample"
    units_per_sample: int = 1
    speedup: Comparison = Comparison(reason="not measured")
    """Against one device without a wrapper."""
    own_speedup: Comparison = Comparison(reason="not measured")
    """Against the same strategy on one device."""
    step_median_s: float | None = None
    step_p90_s: float | None = None
    peaks: dict[str, list[int | None]] = {}
    """Peaks of memory in bytes by ``PEAKS``'s names: per device, largest over the launches."""
    held_bytes: list[int | None] = []
    """Of what lives from step to step, per device."""
    phases: Phases | None = None
    """Median over the launches."""
    communication: Communication | None = None
    sync_cost: Estimate | None = None
    parity: Parity | None = None
    parity_note: str | None = None
    flags: list[str] = []
    same_buckets_as: str | None = None
    """Row whose ``bucket_cap_mb`` differs and led to the same layout of buckets."""
    launch_problems: list[str] = []
    """Launches, or passes, that gave no result, with their reasons."""

    @property
    def efficiency(self) -> Estimate | None:
        """Speedup over the number of devices, 1 for perfect scaling."""
        ratio, count = self.speedup.ratio, self.case.world_size
        if ratio is None:
            return None
        return Estimate(
            value=ratio.value / count,
            low=None if ratio.low is None else ratio.low / count,
            high=None if ratio.high is None else ratio.high / count,
            launches=ratio.launches,
        )

    @property
    def is_proved_wrong(self) -> bool:
        """Whether the figure must not be used: shown struck out, and compared with nothing."""
        failed = self.parity is not None and self.parity.verdict == "failed"
        return failed or not BROKEN_FLAGS.isdisjoint(self.flags)


def condensed(record: Record) -> Record:
    """The record with the raw times of its slowest process only, which are all that a row needs."""
    timing = record.timing
    if timing is None or len(timing.window_s) < 2:
        return record
    slowest = timing.window_s.index(max(timing.window_s))
    short = msgspec.structs.replace(
        timing,
        window_s=[timing.window_s[slowest]],
        step_s=[timing.step_s[slowest]],
        warmup_step_s=[],
    )
    return msgspec.structs.replace(record, timing=short)


def rows_of(planned: Sequence[Case], records: Iterable[Record]) -> list[Row]:
    """One row for each planned case, in the plan's order, and for any other that has records."""
    groups: dict[str, list[Record]] = {case.id: [] for case in planned}
    cases = {case.id: case for case in planned}
    for record in records:
        groups.setdefault(record.case.id, []).append(record)
        cases.setdefault(record.case.id, record.case)
    measured = {id_: _measured(cases[id_], group) for id_, group in groups.items()}
    throughputs = {id_: _throughputs(group) for id_, group in groups.items()}
    others = _Others(list(measured.values()))
    return [_compared(row, others, throughputs) for row in measured.values()]


class _Others:
    """The rows that a row can be compared with, found without looking at all of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._baselines: dict[object, list[Row]] = {}
        self._alone: dict[object, list[Row]] = {}
        self._layouts: dict[object, str] = {}
        for row in rows:
            if row.case.strategy == BASELINE:
                self._baselines.setdefault(_workload(row.case), []).append(row)
            if row.case.world_size == 1:
                self._alone.setdefault(_own(row.case), []).append(row)
            layout = _layout(row)
            if layout is not None:
                self._layouts.setdefault(layout, row.case.label)

    def baselines(self, row: Row) -> list[Row]:
        """One device without a wrapper, on the same model."""
        return self._baselines.get(_workload(row.case), [])

    def alone(self, row: Row) -> list[Row]:
        """The same strategy on one device."""
        return self._alone.get(_own(row.case), [])

    def same_buckets_as(self, row: Row) -> str | None:
        """Label of the first row that differs in its bucket size only, and not in its buckets."""
        layout = _layout(row)
        first = None if layout is None else self._layouts[layout]
        return None if first == row.case.label else first


def _own(case: Case) -> object:
    return _workload(case), *(str(getattr(case, name)) for name in OWN_FIELDS)


def _layout(row: Row) -> object | None:
    """The buckets of a row whose bucket size can be set, with all that else makes it what it is."""
    buckets = row.communication.bucket_bytes if row.communication is not None else None
    if not buckets or BUCKET_OPTION not in row.case.options:
        return None
    options = {name: value for name, value in row.case.options.items() if name != BUCKET_OPTION}
    rest = msgspec.structs.replace(row.case, options=options, label="", id="")
    return msgspec.json.encode((rest, buckets), order="deterministic")


def _measured(case: Case, records: Sequence[Record]) -> Row:
    """The row of one case, without comparisons."""
    latest = {record.key: record for record in records}.values()  # a resumed launch replaces
    timing = [record for record in latest if record.pass_ == "timing"]
    good = [record for record in timing if record.status == "ok"]
    parity = next((record for record in latest if record.pass_ == "parity"), None)
    flags = dict.fromkeys(flag for record in latest for flag in record.flags)
    if len({record.environment for record in good}) > 1:
        flags["unequal_environments"] = None
    row = Row(
        case=case,
        status=good[0].status if good else timing[-1].status if timing else "interrupted",
        reason=None if good else timing[-1].reason if timing else "the run ended before it",
        parity=parity.parity if parity is not None else None,
        parity_note=_parity_note(parity),
        flags=list(flags),
        launch_problems=[
            f"{record.pass_} launch {record.launch + 1}: {record.status}: {record.reason}"
            for record in latest
            if record.status not in {"ok", "skipped"}
        ],
        sync_cost=_sync_cost(latest),
        communication=next((one.communication for one in latest if one.communication), None),
        peaks=_peaks(latest),
        held_bytes=list(_held(latest)),
    )
    return _with_figures(row, good) if good else row


def _parity_note(record: Record | None) -> str | None:
    if record is None:
        return None
    if record.parity is None:
        return f"{record.status}: {record.reason}"
    return record.parity.reason


def _sync_cost(records: Iterable[Record]) -> Estimate | None:
    for record in records:
        if record.communication is not None and record.communication.sync_pairs_s:
            return median_of_differences(record.communication.sync_pairs_s)
    return None


def _throughputs(records: Sequence[Record]) -> list[float]:
    return [
        record.throughput.samples_per_s
        for record in {record.key: record for record in records}.values()
        if record.pass_ == "timing" and record.status == "ok" and record.throughput is not None
    ]


def _with_figures(row: Row, good: Sequence[Record]) -> Row:
    throughput = good[0].throughput
    assert throughput is not None, "a timing record without failure has a throughput"
    launches = [
        _slowest(record.timing.step_s, record.timing.window_s)
        for record in good
        if record.timing is not None
    ]
    return msgspec.structs.replace(
        row,
        samples_per_s=mean_of_launches(_throughputs(good)),
        environment=good[0].environment,
        unit=throughput.unit,
        units_per_sample=throughput.units_per_sample,
        # Of each launch, then over launches: pooled, a slow launch would look like slow steps.
        step_median_s=statistics.median(percentile(steps, 50) for steps in launches),
        step_p90_s=statistics.median(percentile(steps, 90) for steps in launches),
        phases=_median_phases(good),
    )


def _slowest(step_s: list[list[float]], window_s: list[float]) -> list[float]:
    return step_s[window_s.index(max(window_s))]


def _peaks(records: Iterable[Record]) -> dict[str, list[int | None]]:
    """The figures that exist, as a maximum over launches and passes for each device."""
    found: dict[str, list[int | None]] = {}
    memories = [record.memory for record in records if record.memory is not None]
    for name, field in PEAKS.items():
        lists = [getattr(memory, field) for memory in memories]
        if any(value is not None for values in lists for value in values):
            found[name] = [
                max((value for value in device if value is not None), default=None)
                for device in itertools.zip_longest(*lists)
            ]
    return found


def _median_phases(records: Sequence[Record]) -> Phases | None:
    phases = [record.phases for record in records if record.phases is not None]
    if not phases:
        return None
    names = [name for name in Phases.__struct_fields__ if name != "pieces_s"]
    pieces = phases[0].pieces_s or {}
    return Phases(
        **{name: statistics.median(getattr(one, name) for one in phases) for name in names},
        pieces_s={
            name: statistics.median((one.pieces_s or {}).get(name, 0.0) for one in phases)
            for name in pieces
        }
        or None,
    )


def _held(records: Iterable[Record]) -> list[int]:
    """What lives from step to step on each device, as the last record says."""
    held: list[int] = []
    for record in records:
        categories = record.memory.by_category if record.memory is not None else None
        if categories:
            held = [sum(device) for device in zip(*categories.values(), strict=True)]
    return held


def _compared(row: Row, others: _Others, throughputs: dict[str, list[float]]) -> Row:
    row = msgspec.structs.replace(
        row,
        speedup=_compare(row, others.baselines(row), throughputs, "one device without a wrapper"),
        own_speedup=_compare(
            row, others.alone(row), throughputs, f"{row.case.label} on one device"
        ),
    )
    return msgspec.structs.replace(
        row,
        flags=[
            *row.flags,
            *derived_flags(
                devices=row.case.world_size,
                speedup=None if row.speedup.is_baseline else row.speedup.ratio,
                rate=row.samples_per_s,
                step_s=row.step_median_s,
                profiled_step_s=(
                    row.communication.profiled_step_s if row.communication is not None else None
                ),
            ),
        ],
        same_buckets_as=others.same_buckets_as(row),
    )


def _compare(
    row: Row, candidates: Sequence[Row], throughputs: dict[str, list[float]], name: str
) -> Comparison:
    if row.samples_per_s is None:
        return Comparison(reason="not measured")
    if row.is_proved_wrong:
        return Comparison(reason="the row failed its proof")
    if "oversubscribed" in row.flags:
        return Comparison(reason="more devices than sets of cores")
    if "no_warmup" in row.flags:
        return Comparison(reason="measured without warm-up")
    alike = [other for other in candidates if not _differences(row, other)]
    alike.sort(key=lambda other: other.case.id != row.case.id)  # a row is its own best baseline
    usable = [
        other
        for other in alike
        if other.samples_per_s
        and not other.is_proved_wrong
        and not {"no_warmup", "unequal_environments"} & set(other.flags)
    ]
    if usable and usable[0].case.id == row.case.id:
        launches = row.samples_per_s.launches
        return Comparison(ratio=Estimate(value=1.0, launches=launches), is_baseline=True)
    if usable:
        ratio = ratio_of_means(throughputs[row.case.id], throughputs[usable[0].case.id])
        return Comparison(ratio=ratio)
    if alike:
        return Comparison(reason=f"{name} has no valid figure")
    if candidates:
        keys = min((_differences(row, other) for other in candidates), key=len)
        return Comparison(reason=f"{name} was measured with another {' and '.join(keys)}")
    return Comparison(reason=f"{name} was not measured")


def _workload(case: Case) -> object:
    return case.workload, case.preset, str(sorted(case.workload_options.items(), key=str))


def _differences(row: Row, other: Row) -> list[str]:
    """Names of what makes two rows of one workload unlike beyond strategy and device count."""
    scaling = row.case.scaling
    fields = ["device", "precision", "compile", "optimizer", "scaling", "cores_per_device"]
    fields += ["data", "seed"]
    fields += ["global_batch"] if scaling == "strong" else ["per_device_batch"]
    fields += ["accumulation_steps"] if scaling == "weak" else []
    names = [name for name in fields if getattr(row.case, name) != getattr(other.case, name)]
    measured = row.environment is not None and other.environment is not None
    if measured and row.environment != other.environment:
        names.append("environment")
    return names
