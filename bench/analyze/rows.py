"""Everything a table says of one case, from the records of that case alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from bench.analyze.checks import flags_of_steps
from bench.analyze.launches import Launch
from bench.analyze.stats import (
    Estimate,
    Noise,
    figure_of,
    median_of_differences,
    percentile,
)
from bench.plan.case import Case
from bench.records.record import (
    BROKEN_FLAGS,
    Communication,
    Compilation,
    MaxBatch,
    Parity,
    Phases,
    Record,
    Status,
)

PEAKS = {
    "tensor": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "driver": "peak_driver_bytes",
    "resident": "peak_process_bytes",
}
"""What a peak is of, in a word, and its field in the record; the most telling first."""


Verdict = Literal["faster", "slower", "no clear difference"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio of throughputs, or why there is none."""

    ratio: Estimate | None = None
    reason: str | None = None
    is_baseline: bool = False
    """The row is what others are compared with: 1 by definition."""
    chance: float | None = None
    """How often equal rows would differ as much: the p-value, of this comparison alone."""
    verdict: Verdict | None = None
    """Corrected for the number of comparisons, and beyond what equal cases differ by."""


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """The same case, planned a second time: what differs between the two is noise."""

    comparison: Comparison
    """The second over the first."""
    launches: list[Launch] = []
    problems: list[str] = []
    """Its launches that gave no result, with their reasons."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a table says of one case."""

    case: Case
    status: Status
    """Of the timing launches: ok if any succeeded, else the last one's."""
    reason: str | None = None
    samples_per_s: Estimate | None = None
    launches: list[Launch] = []
    """Throughput of each launch that succeeded, in the order of time."""
    figures: list[float] = []
    """Likewise, as far as each counts (``launches.counted``)."""
    environment: str | None = None
    """Fingerprint of where the figure was measured."""
    unit: str = "sample"
    units_per_sample: int = 1
    speedup: Comparison = Comparison(reason="not measured")
    """Against one device without a wrapper."""
    own_speedup: Comparison = Comparison(reason="not measured")
    """Against the same strategy on one device."""
    peer: Comparison = Comparison(reason="not measured")
    """Against plain DDP on as many devices."""
    twin: Twin | None = None
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
    compilation: Compilation | None = None
    """Of the first timing launch that succeeded, which found nothing that was compiled already,
    unless a proof has."""
    compile_s: list[float] = []
    """Of each timing launch, on the process that took longest."""
    parity: Parity | None = None
    parity_note: str | None = None
    max_batch: MaxBatch | None = None
    """Largest batch that fits into a device's memory, where it was asked for."""
    max_batch_note: str | None = None
    """Why it was not found."""
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


def family(case: Case) -> object:
    """Equal for cases that stand in one table: one model, batch rule and kind of device."""
    return (
        case.workload,
        case.preset,
        str(sorted(case.workload_options.items(), key=str)),
        case.scaling,
        case.device,
    )


def launches_of(records: Iterable[tuple[int, Record]]) -> list[Launch]:
    """The launches that gave a figure.

    Args:
        records: of one case, each with its place in the run, which stands for time.
    """
    latest = {record.key: (at, record) for at, record in records}  # a resumed launch replaces
    return [
        Launch(
            at=at,
            round=record.launch if record.round is None else record.round,
            figure=record.throughput.samples_per_s,
        )
        for at, record in latest.values()
        if record.pass_ == "timing" and record.status == "ok" and record.throughput is not None
    ]


def row_of(
    case: Case,
    records: Sequence[Record],
    launches: Sequence[Launch],
    figures: Sequence[float],
    noise: Noise,
) -> Row:
    """The row of one case, without comparisons.

    Args:
        case: the row's.
        records: of the case, in the order of time.
        launches: that gave a figure.
        figures: of those, as far as each counts.
        noise: of the run.
    """
    every = {record.key: record for record in records}.values()  # a resumed launch replaces
    searched = next((record for record in every if record.pass_ == "max_batch"), None)
    latest = [record for record in every if record.pass_ != "max_batch"]  # which has other batches
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
        max_batch=searched.max_batch if searched is not None else None,
        max_batch_note=_why_not_searched(searched),
        flags=list(flags),
        launch_problems=[problem for record in latest for problem in _problems(record)],
        sync_cost=_sync_cost(latest),
        communication=next((one.communication for one in latest if one.communication), None),
        peaks=_peaks(latest),
        held_bytes=list(_held(latest)),
        compilation=next((one.compilation for one in good if one.compilation), None),
        compile_s=[max(one.compilation.compile_s) for one in good if one.compilation],
        launches=list(launches),
        figures=list(figures),
    )
    return _with_figures(row, good, noise) if good else row


def _problems(record: Record) -> Iterator[str]:
    """What did not go as it should in a launch, whether or not it has a result."""
    name = f"{record.pass_} launch {record.launch + 1}"
    if record.status not in {"ok", "skipped"}:
        yield f"{name}: {record.status}: {record.reason}"
    for reason in record.retries or ():
        yield f"{name}: started again after: {reason}"
    for rank, code in (record.teardown_exit or {}).items():
        yield f"{name}: rank {rank} ended with exit code {code} after it had handed over its result"


def _parity_note(record: Record | None) -> str | None:
    if record is None:
        return None
    if record.parity is None:
        return f"{record.status}: {record.reason}"
    return record.parity.reason


def _why_not_searched(record: Record | None) -> str | None:
    if record is None or record.max_batch is not None:
        return None
    return f"{record.status.replace('_', ' ')}: {record.reason}"


def _sync_cost(records: Iterable[Record]) -> Estimate | None:
    for record in records:
        if record.communication is not None and record.communication.sync_pairs_s:
            return median_of_differences(record.communication.sync_pairs_s)
    return None


def _with_figures(row: Row, good: Sequence[Record], noise: Noise) -> Row:
    throughput = good[0].throughput
    assert throughput is not None, "a timing record without failure has a throughput"
    steps_of_launches = [
        _slowest(record.timing.step_s, record.timing.window_s)
        for record in good
        if record.timing is not None
    ]
    return msgspec.structs.replace(
        row,
        samples_per_s=figure_of(row.figures, noise),
        environment=good[0].environment,
        unit=throughput.unit,
        units_per_sample=throughput.units_per_sample,
        # Of each launch, then over launches: pooled, a slow launch would look like slow steps.
        step_median_s=statistics.median(percentile(steps, 50) for steps in steps_of_launches),
        step_p90_s=statistics.median(percentile(steps, 90) for steps in steps_of_launches),
        phases=_median_phases(good),
        flags=[*row.flags, *flags_of_steps(steps_of_launches)],
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
