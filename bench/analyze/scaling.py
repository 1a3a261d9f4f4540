"""Records -> rows: one for each planned case, with its speedup or the reason why it has none.

A speedup compares like with like only: the same model, batch rule, precision, compile mode,
optimizer, cores and environment. Both baselines are kept: one device without any wrapper, and the
same strategy on one device.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bench.analyze import page_faults
from bench.analyze.checks import flags_of_figures
from bench.analyze.figures import launches_of, row_of
from bench.analyze.launches import counted, drift_of, noisy_rows
from bench.analyze.loading import flags_of_loading
from bench.analyze.others import (
    PEER,
    Others,
    compare,
    unlike_but_for_settings,
    unlike_peer,
)
from bench.analyze.rows import Comparison, Row, Twin
from bench.analyze.settings import changed, without_plain
from bench.analyze.shapes import LEAST_LAUNCHES, has_two_levels
from bench.analyze.stats import Noise, noise_of, ratio_of
from bench.analyze.verdicts import judged
from bench.plan.case import Case, bytes_per_s, original_of
from bench.records.record import Record


def rows_of(
    planned: Sequence[Case],
    records: Iterable[Record],
    *,
    rungs: Mapping[str, str] | None = None,
    link_bytes_per_s: float | None = None,
) -> list[Row]:
    """One row for each planned case, in the plan's order, and for any other that has records.

    A case that was planned twice to learn what noise is (``Case.twin``) is one row.

    Args:
        planned: all cases, those without records as well.
        records: of one run, in the order in which they were made.
        rungs: of ladders, each case's id and that of the rung below it.
        link_bytes_per_s: rate of the slowest link between the devices, where it is known.
    """
    below = rungs or {}
    groups: dict[str, list[tuple[int, Record]]] = {case.id: [] for case in planned}
    cases = {case.id: case for case in planned}
    for place, record in enumerate(records):
        groups.setdefault(record.case.id, []).append((place, record))
        cases.setdefault(record.case.id, record.case)
    launches = {id_: launches_of(group) for id_, group in groups.items()}
    figures = counted(launches)
    noise = noise_of(figures.values())
    drift = drift_of(launches.values())
    noisy = noisy_rows(launches)
    rows: list[Row] = []
    for id_, group in groups.items():
        found = [record for _, record in group]
        row = row_of(cases[id_], found, launches[id_], figures[id_], noise)
        flags = dict.fromkeys(row.flags)
        if id_ in noisy:
            flags["noisy"] = None
        if drift is not None and drift.is_clear and launches[id_]:
            flags["drifting"] = None
        if has_two_levels([one.figure for one in launches[id_]], LEAST_LAUNCHES):
            flags["bimodal"] = None
        rows.append(msgspec.structs.replace(row, flags=list(flags), rung_below=below.get(id_)))
    rows = _with_twins(_with_matrix_rates(rows), noise)
    others = Others(rows)
    return judged([_compared(row, others, noise, link_bytes_per_s) for row in rows])


def _with_matrix_rates(rows: Sequence[Row]) -> list[Row]:
    """The rows with the rate in products of matrices that all like them have measured."""
    rates: dict[object, list[float]] = {}
    for row in rows:
        if row.compute is not None and row.compute.matrix_flops_per_s:
            rates.setdefault(_kind_of_device(row.case), []).append(row.compute.matrix_flops_per_s)
    medians = {kind: statistics.median(some) for kind, some in rates.items()}
    return [
        msgspec.structs.replace(row, matrix_flops_per_s=medians.get(_kind_of_device(row.case)))
        for row in rows
    ]


def _kind_of_device(case: Case) -> object:
    env = tuple(sorted(case.env.items(), key=str))
    return case.device, case.cores_per_device, case.precision, case.world_size, case.nodes, env


def _with_twins(rows: Sequence[Row], noise: Noise) -> list[Row]:
    """The rows without those that only repeat another, which is told what its repeat gave."""
    originals = {row.case.id for row in rows if not row.case.twin}
    twins = {original_of(row.case).id: row for row in rows if row.case.twin}
    return [
        msgspec.structs.replace(row, twin=_twin(row, twins[row.case.id], noise))
        if not row.case.twin and row.case.id in twins
        else row
        for row in rows
        # One that repeats nothing here is a row like any other: none is lost.
        if not row.case.twin or original_of(row.case).id not in originals
    ]


def _twin(row: Row, twin: Row, noise: Noise) -> Twin:
    if row.launches and twin.launches:
        comparison = Comparison(ratio=ratio_of(twin.figures, row.figures, noise))
    else:
        comparison = Comparison(reason=twin.reason if row.launches else row.reason)
    return Twin(
        comparison=comparison,
        launches=twin.launches,
        figures=twin.figures,
        problems=twin.launch_problems,
    )


def _compared(row: Row, others: Others, noise: Noise, link_bytes_per_s: float | None) -> Row:
    if row.case.link is not None:
        link_bytes_per_s = bytes_per_s(row.case.link)
    name = "the same on one device"
    row = msgspec.structs.replace(
        row,
        speedup=compare(row, others.baselines(row), noise, "one device without a wrapper"),
        own_speedup=compare(row, others.alone(row), noise, name),
        peer=_peer(row, others, noise),
        same_buckets_as=others.same_buckets_as(row),
    )
    row = _with_settings(row, others, noise)
    baseline = others.by_id(row.speedup.against)
    flags = flags_of_figures(
        devices=row.case.world_size,
        speedup=None if row.speedup.is_baseline else row.speedup.ratio,
        rate=row.samples_per_s,
        step_s=row.step_mean_s,
        communication=row.communication,
        sync_cost=row.sync_cost,
        link_bytes_per_s=link_bytes_per_s,
    )
    if baseline is not None and page_faults.differ(row, baseline):
        flags.append("page_faults_differ")
    return msgspec.structs.replace(row, flags=[*row.flags, *flags, *flags_of_loading(row)])


def _with_settings(row: Row, others: Others, noise: Noise) -> Row:
    """The row with what it differs in from plain settings, and from the rung below."""

    def against(other: Row | None, name: str) -> Comparison:
        found = [] if other is None else [other]
        return compare(row, found, noise, name, unlike_but_for_settings)

    plain, below = others.plain(row), others.below(row)
    return msgspec.structs.replace(
        row,
        setting=against(plain, f"{row.case.strategy} with plain settings"),
        settings=without_plain(row.case) if plain is None else changed(row.case, plain.case),
        rung=against(below, "the rung below"),
        rung_settings=[] if below is None else changed(row.case, below.case),
    )


def _peer(row: Row, others: Others, noise: Noise) -> Comparison:
    if row.case.world_size == 1:
        return Comparison(reason="one device: the speedup compares it")
    name = f"{PEER} on as many devices"
    return compare(row, others.peers(row), noise, name, unlike_peer)
