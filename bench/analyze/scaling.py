"""Records -> rows: one for each planned case, with its speedup or the reason why it has none.

A speedup compares like with like only: the same model, batch rule, precision, compile mode,
optimizer, cores and environment. Both baselines are kept: one device without any wrapper, and the
same strategy on one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bench.analyze.checks import UNFIT, flags_of_figures
from bench.analyze.launches import counted, drift_of, noisy_rows
from bench.analyze.rows import Comparison, Row, Twin, launches_of, row_of
from bench.analyze.shapes import LEAST_LAUNCHES, has_two_levels
from bench.analyze.stats import Estimate, Noise, chance_of, noise_of, ratio_of
from bench.analyze.verdicts import judged
from bench.plan.case import Case, original_of
from bench.records.record import Record

BASELINE = "single"
PEER = "ddp"
"""Strategy, with torch's defaults, that others on as many devices are compared with."""
BUCKET_OPTION = "bucket_cap_mb"

OWN_FIELDS = ("strategy", "options", "backend", "accumulation_steps", "accumulation_sync")
"""What "the same strategy on one device" must share beyond what all baselines do."""

UNFIT_BASELINE = {
    "ranks_share_cores",
    "no_warmup",
    "profiler_on",
    "unequal_environments",
    "not_compiled",
    "recompiled",
}
"""Flags of rows that nothing is compared with."""


def rows_of(
    planned: Sequence[Case],
    records: Iterable[Record],
    *,
    link_bytes_per_s: float | None = None,
) -> list[Row]:
    """One row for each planned case, in the plan's order, and for any other that has records.

    A case that was planned twice to learn what noise is (``Case.twin``) is one row.

    Args:
        planned: all cases, those without records as well.
        records: of one run, in the order in which they were made.
        link_bytes_per_s: rate of the slowest link between the devices, where it is known.
    """
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
        rows.append(msgspec.structs.replace(row, flags=list(flags)))
    rows = _with_twins(rows, noise)
    others = _Others(rows)
    return judged([_compared(row, others, noise, link_bytes_per_s) for row in rows])


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
    return Twin(comparison=comparison, launches=twin.launches, problems=twin.launch_problems)


class _Others:
    """The rows that a row can be compared with, found without looking at all of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._baselines: dict[object, list[Row]] = {}
        self._alone: dict[object, list[Row]] = {}
        self._peers: dict[object, list[Row]] = {}
        self._layouts: dict[object, str] = {}
        for row in rows:
            if row.case.strategy == BASELINE:
                self._baselines.setdefault(_workload(row.case), []).append(row)
            if row.case.label == PEER:
                self._peers.setdefault((_workload(row.case), row.case.world_size), []).append(row)
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

    def peers(self, row: Row) -> list[Row]:
        """Plain DDP on as many devices."""
        return self._peers.get((_workload(row.case), row.case.world_size), [])

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


def _compared(row: Row, others: _Others, noise: Noise, link_bytes_per_s: float | None) -> Row:
    name = f"{row.case.label} on one device"
    row = msgspec.structs.replace(
        row,
        speedup=_compare(row, others.baselines(row), noise, "one device without a wrapper"),
        own_speedup=_compare(row, others.alone(row), noise, name),
        peer=_peer(row, others, noise),
        same_buckets_as=others.same_buckets_as(row),
    )
    flags = flags_of_figures(
        devices=row.case.world_size,
        speedup=None if row.speedup.is_baseline else row.speedup.ratio,
        rate=row.samples_per_s,
        step_s=row.step_median_s,
        communication=row.communication,
        link_bytes_per_s=link_bytes_per_s,
    )
    return msgspec.structs.replace(row, flags=[*row.flags, *flags])


def _peer(row: Row, others: _Others, noise: Noise) -> Comparison:
    if row.case.world_size == 1:
        return Comparison(reason="one device: the speedup compares it")
    return _compare(row, others.peers(row), noise, f"{PEER} on as many devices")


def _compare(row: Row, candidates: Sequence[Row], noise: Noise, name: str) -> Comparison:
    if row.samples_per_s is None:
        return Comparison(reason="not measured")
    if row.is_proved_wrong:
        return Comparison(reason="the row failed its proof")
    unfit = next((reason for flag, reason in UNFIT.items() if flag in row.flags), None)
    if unfit is not None:
        return Comparison(reason=unfit)
    alike = [other for other in candidates if not _differences(row, other)]
    alike.sort(key=lambda other: other.case.id != row.case.id)  # a row is its own best baseline
    usable = [
        other
        for other in alike
        if other.samples_per_s
        and not other.is_proved_wrong
        and UNFIT_BASELINE.isdisjoint(other.flags)
    ]
    if usable and usable[0].case.id == row.case.id:
        launches = row.samples_per_s.launches
        return Comparison(ratio=Estimate(value=1.0, launches=launches), is_baseline=True)
    if usable:
        above, below = row.figures, usable[0].figures
        return Comparison(
            ratio=ratio_of(above, below, noise), chance=chance_of(above, below, noise)
        )
    if alike:
        return Comparison(reason=f"{name} has no valid figure")
    if candidates:
        keys = min((_differences(row, other) for other in candidates), key=len)
        return Comparison(reason=f"{name} was measured with another {' and '.join(keys)}")
    return Comparison(reason=f"{name} was not measured")


def _workload(case: Case) -> object:
    return case.workload, case.preset, str(sorted(case.workload_options.items(), key=str))


def _scope(case: Case, other: Case) -> str | None:
    """What is compiled of a case, next to another: without a wrapper, its in and out are one."""
    if "none" in {case.compile, other.compile}:
        return None
    without_wrapper = BASELINE in {case.strategy, other.strategy}
    return "outside" if without_wrapper and case.compile_scope == "inside" else case.compile_scope


def _differences(row: Row, other: Row) -> list[str]:
    """Names of what makes two rows of one workload unlike beyond strategy and device count."""
    scaling = row.case.scaling
    fields = ["device", "precision", "compile", "optimizer", "scaling", "cores_per_device"]
    fields += ["data", "seed", "activation_checkpointing", "optimizer_kernels", "env"]
    fields += ["global_batch"] if scaling == "strong" else ["per_device_batch"]
    fields += ["accumulation_steps"] if scaling == "weak" else []
    names = [name for name in fields if getattr(row.case, name) != getattr(other.case, name)]
    if _scope(row.case, other.case) != _scope(other.case, row.case):
        names.append("compile_scope")
    measured = row.environment is not None and other.environment is not None
    if measured and row.environment != other.environment:
        names.append("environment")
    return names
