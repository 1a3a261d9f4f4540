"""Everything a table says of one case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from bench.analyze.launches import Launch
from bench.analyze.stats import (
    Estimate,
    Noise,
    noise_of,
)
from bench.plan.case import Case
from bench.records.record import (
    BROKEN_FLAGS,
    Communication,
    Compilation,
    Compute,
    Input,
    MaxBatch,
    Memory,
    Parity,
    Phases,
    Status,
)
from bench.records.trained import Checkpoint, Training

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
    why_unclear: str | None = None
    """Where there is no clear difference although its own interval leaves out 1."""
    against: str | None = None
    """Id of the case below the line."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in which a row differs from another, and the row's value of it."""

    name: str
    value: Any
    is_option: bool = False
    """The strategy's own, and no field of the case."""


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """The same case, planned a second time: what differs between the two is noise."""

    comparison: Comparison
    """The second over the first."""
    launches: list[Launch] = []
    figures: list[float] = []
    """Of those, as far as each counts."""
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
    setting: Comparison = Comparison(reason="not measured")
    """Against the same strategy with plain settings on as many devices: precision and compile mode
    may differ there, since what they bring is the question."""
    settings: list[Setting] = []
    """What differs from those; empty for the plain row itself."""
    rung: Comparison = Comparison(reason="not measured")
    """Against the rung below, for a rung of a ladder."""
    rung_settings: list[Setting] = []
    """What it adds to that."""
    rung_below: str | None = None
    """Id of the case that it adds one more setting to; None for what is no rung, or the lowest."""
    twin: Twin | None = None
    step_mean_s: float | None = None
    """Of the window, on its slowest process; median over the launches, as are the next two."""
    step_median_s: float | None = None
    step_p90_s: float | None = None
    peaks: dict[str, list[int | None]] = {}
    """Peaks of memory in bytes by ``PEAKS``'s names: per device, largest over the launches."""
    usual_peaks: dict[str, list[int | None]] = {}
    """Likewise, the median over the launches: what rows are compared in."""
    held_bytes: list[int | None] = []
    """Of what lives from step to step, per device."""
    memory: Memory | None = None
    """Of the pass that tells what the peak is made of."""
    page_fault_share: float | None = None
    """Of a step, on the process that has most of them: median over the launches."""
    phases: Phases | None = None
    """Median over the launches."""
    input: Input | None = None
    """Of the first timing launch that succeeded, where batches came through a loader."""
    compute: Compute | None = None
    """Of its first launch."""
    matrix_flops_per_s: float | None = None
    """What a device does in products of matrices alone: median over the run's rows on as many
    devices of one kind, in one precision. Each row has measured it once, and that scatters."""
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
    checkpoint: Checkpoint | None = None
    """What saving and restoring took, where it was asked for."""
    checkpoint_note: str | None = None
    """Why there is none, or what went wrong."""
    training: list[Training] = []
    """Of each launch that learnt something from the start, where it was asked for."""
    flags: list[str] = []
    same_buckets_as: str | None = None
    """Row whose bucket size differs and led to the same layout of buckets."""
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
    def flops_per_s(self) -> float | None:
        """Floating-point operations a second of the model's own, on all devices together."""
        if self.compute is None or self.compute.step_flops is None or self.samples_per_s is None:
            return None
        return self.compute.step_flops * self.samples_per_s.value / self.case.global_batch

    @property
    def utilisation(self) -> float | None:
        """That, over what all devices do in products of matrices alone."""
        rate = self.matrix_flops_per_s
        if self.flops_per_s is None or not rate:
            return None
        return self.flops_per_s / (rate * self.case.world_size)

    @property
    def is_proved_wrong(self) -> bool:
        """Whether the figure must not be used: shown struck out, and compared with nothing."""
        failed = self.parity is not None and self.parity.verdict == "failed"
        return failed or not BROKEN_FLAGS.isdisjoint(self.flags)


def noise_among(rows: Iterable[Row]) -> Noise:
    """What the rows of a run say together of its launches' scatter: repeats of a case count, too.

    Of all rows of a run it is what their own figures were made with.
    """
    every = [(row.figures, row.twin.figures if row.twin is not None else []) for row in rows]
    return noise_of(figures for pair in every for figures in pair if figures)


def family(case: Case) -> object:
    """Equal for cases that stand in one table: one model, batch rule and kind of device."""
    return (
        case.workload,
        case.preset,
        str(sorted(case.workload_options.items(), key=str)),
        case.scaling,
        case.device,
    )
