"""The figures of one case, from the records of that case alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from bench.analyze import page_faults
from bench.analyze.checks import flags_of_steps
from bench.analyze.launches import Launch
from bench.analyze.rhythm import period_of, round_means
from bench.analyze.rows import PEAKS, Row
from bench.analyze.stats import (
    Estimate,
    Noise,
    figure_of,
    median_of_differences,
    percentile,
)
from bench.plan.case import Case
from bench.records.record import (
    Phases,
    Record,
)


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
    saved = next((record for record in latest if record.pass_ == "checkpoint"), None)
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
        checkpoint=saved.checkpoint if saved is not None else None,
        checkpoint_note=_checkpoint_note(saved),
        training=[one.training for one in latest if one.training is not None],
        flags=list(flags),
        launch_problems=[problem for record in latest for problem in _problems(record)],
        sync_cost=_sync_cost(case, latest),
        input=next((one.input for one in good if one.input), None),
        compute=next((one.compute for one in good if one.compute), None),
        communication=next((one.communication for one in latest if one.communication), None),
        peaks=_peaks(latest, max),
        usual_peaks=_peaks(latest, statistics.median_high),
        held_bytes=list(_held(latest)),
        memory=next((one.memory for one in latest if one.memory and one.memory.timeline), None),
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
    if record.checkpoint is not None and record.checkpoint.verdict == "failed":
        yield f"{name}: what was restored is not what was saved: {record.checkpoint.reason}"
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


def _checkpoint_note(record: Record | None) -> str | None:
    if record is None:
        return None
    if record.checkpoint is None:
        return f"{record.status.replace('_', ' ')}: {record.reason}"
    return record.checkpoint.reason


def _why_not_searched(record: Record | None) -> str | None:
    if record is None or record.max_batch is not None:
        return None
    return f"{record.status.replace('_', ' ')}: {record.reason}"


def _sync_cost(case: Case, records: Iterable[Record]) -> Estimate | None:
    """Up to the optimizer: of a strategy that synchronises in it, that would be of nothing."""
    if period_of(case) > 1:
        return None
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
    rounds = [round_means(steps, period_of(row.case)) for steps in steps_of_launches]
    share = page_faults.share_of(good)
    flags = [one for one in row.flags if share is None or one != page_faults.FLAG]
    if share is not None and share > page_faults.SHARE:
        flags.append(page_faults.FLAG)
    return msgspec.structs.replace(
        row,
        samples_per_s=figure_of(row.figures, noise),
        environment=good[0].environment,
        unit=throughput.unit,
        units_per_sample=throughput.units_per_sample,
        # Of each launch, then over launches: pooled, a slow launch would look like slow steps.
        step_mean_s=statistics.median(map(statistics.fmean, steps_of_launches)),
        step_median_s=statistics.median(percentile(steps, 50) for steps in steps_of_launches),
        step_p90_s=statistics.median(percentile(steps, 90) for steps in steps_of_launches),
        page_fault_share=share,
        phases=_median_phases(good),
        flags=[*flags, *flags_of_steps(rounds)],
    )


def _slowest(step_s: list[list[float]], window_s: list[float]) -> list[float]:
    return step_s[window_s.index(max(window_s))]


def _peaks(
    records: Iterable[Record], combine: Callable[[list[int]], int]
) -> dict[str, list[int | None]]:
    """The figures that exist, combined over launches and passes for each device."""
    found: dict[str, list[int | None]] = {}
    memories = [record.memory for record in records if record.memory is not None]
    for name, field in PEAKS.items():
        lists = [getattr(memory, field) for memory in memories]
        if any(value is not None for values in lists for value in values):
            found[name] = [
                combine(values) if (values := [one for one in device if one is not None]) else None
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
        if record.memory is None:
            continue
        # Files that know of the peak's parts, too, have these apart.
        categories = record.memory.held_by_category or record.memory.by_category
        if categories:
            held = [sum(device) for device in zip(*categories.values(), strict=True)]
    return held
