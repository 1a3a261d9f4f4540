"""The rows that a row can be compared with, and the comparison.

A speedup compares like with like only: the same model, batch rule, precision, compile mode,
optimizer, cores and environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.analyze.checks import UNFIT
from bench.analyze.rows import Comparison, Row
from bench.analyze.settings import buckets_of, group_key, groups_of, layout_key, plain_of
from bench.analyze.stats import Estimate, Noise, chance_of, ratio_of
from bench.plan.case import Case

BASELINE = "single"
WRAPPERLESS = frozenset({"single", "fsdp"})
"""Strategies that lay no module of their own around the model."""
PEER = "ddp"
"""Strategy, with torch's defaults, that others on as many devices are compared with."""

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


class Others:
    """The rows that a row can be compared with, found without looking at all of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._baselines: dict[object, list[Row]] = {}
        self._alone: dict[object, list[Row]] = {}
        self._peers: dict[object, list[Row]] = {}
        self._layouts: dict[object, str] = {}
        self._plain: dict[object, Row | None] = {}
        self._by_id = {row.case.id: row for row in rows}
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
        for group in groups_of(rows):
            self._plain[group_key(group[0].case)] = plain_of(group)

    def by_id(self, id_: str | None) -> Row | None:
        """The row of a case; None where there is none."""
        return self._by_id.get(id_ or "")

    def baselines(self, row: Row) -> list[Row]:
        """One device without a wrapper, on the same model."""
        return self._baselines.get(_workload(row.case), [])

    def alone(self, row: Row) -> list[Row]:
        """The same strategy on one device."""
        return self._alone.get(_own(row.case), [])

    def peers(self, row: Row) -> list[Row]:
        """Plain DDP on as many devices."""
        return self._peers.get((_workload(row.case), row.case.world_size), [])

    def plain(self, row: Row) -> Row | None:
        """The same strategy on as many devices, with plain settings."""
        return self._plain[group_key(row.case)]

    def below(self, row: Row) -> Row | None:
        """The rung of a ladder that the row adds something to."""
        lower = self._by_id.get(row.rung_below or "")
        return lower if lower and group_key(lower.case) == group_key(row.case) else None

    def same_buckets_as(self, row: Row) -> str | None:
        """Label of the first row that differs in its bucket size only, and not in its buckets."""
        layout = _layout(row)
        first = None if layout is None else self._layouts[layout]
        return None if first == row.case.label else first


def _workload(case: Case) -> object:
    return case.workload, case.preset, str(sorted(case.workload_options.items(), key=str))


def _own(case: Case) -> object:
    return _workload(case), *(str(getattr(case, name)) for name in OWN_FIELDS)


def _layout(row: Row) -> object | None:
    rest = layout_key(row)
    return None if rest is None else (rest, *buckets_of(row))


Differences = Callable[[Row, Row], list[str]]
"""Names of what makes two rows unlike, so that their figures cannot be compared."""


def _scope(case: Case, other: Case) -> str | None:
    """What is compiled of a case, next to another: without a wrapper, its in and out are one."""
    if "none" in {case.compile, other.compile}:
        return None
    without_wrapper = not WRAPPERLESS.isdisjoint({case.strategy, other.strategy})
    return "outside" if without_wrapper and case.compile_scope == "inside" else case.compile_scope


def unlike(row: Row, other: Row) -> list[str]:
    """What two rows of one workload differ in beyond strategy and device count."""
    scaling = row.case.scaling
    fields = ["device", "precision", "compile", "optimizer", "scaling", "cores_per_device"]
    fields += [
        "data",
        "data_options",
        "seed",
        "activation_checkpointing",
        "optimizer_kernels",
        "env",
    ]
    fields += ["global_batch"] if scaling == "strong" else ["per_device_batch"]
    fields += ["accumulation_steps"] if scaling == "weak" else []
    names = [name for name in fields if getattr(row.case, name) != getattr(other.case, name)]
    if _scope(row.case, other.case) != _scope(other.case, row.case):
        names.append("compile_scope")
    return names + _unlike_environment(row, other)


def unlike_peer(row: Row, other: Row) -> list[str]:
    """What forbids comparing a strategy with another one on as many devices."""
    backends = {row.case.backend, other.case.backend} - {None}
    found = unlike(row, other) + (["backend"] if len(backends) > 1 else [])
    places = ("nodes", "link", "latency_ms")
    found += [name for name in places if getattr(row.case, name) != getattr(other.case, name)]
    accumulates = row.case.accumulation_steps > 1 and other.case.accumulation_steps > 1
    if accumulates and row.case.accumulation_sync != other.case.accumulation_sync:
        found.append("accumulation_sync")
    return found


def unlike_but_for_settings(row: Row, other: Row) -> list[str]:
    """What two rows of one group of settings differ in beyond these."""
    # Variables that a case asks for are part of the environment that its launches see.
    return _unlike_environment(row, other) if row.case.env == other.case.env else []


def _unlike_environment(row: Row, other: Row) -> list[str]:
    measured = row.environment is not None and other.environment is not None
    return ["environment"] if measured and row.environment != other.environment else []


def unusable(row: Row) -> str | None:
    """Why a row's figure is compared with nothing; None where it may be."""
    if row.samples_per_s is None:
        return "not measured"
    if row.is_proved_wrong:
        return "the row failed its proof"
    return next((reason for flag, reason in UNFIT.items() if flag in row.flags), None)


def measured_against(row: Row, other: Row, noise: Noise) -> Comparison:
    """The ratio of two figures that may be compared, without a verdict."""
    return Comparison(
        ratio=ratio_of(row.figures, other.figures, noise),
        chance=chance_of(row.figures, other.figures, noise),
        against=other.case.id,
    )


def compare(
    row: Row,
    candidates: Sequence[Row],
    noise: Noise,
    name: str,
    differences: Differences = unlike,
) -> Comparison:
    """A row's throughput over that of the first candidate that may be compared with it.

    Args:
        row: above the line.
        candidates: below it.
        noise: of the run.
        name: of what the candidates are, for reasons.
        differences: what forbids a comparison.
    """
    if (reason := unusable(row)) is not None:
        return Comparison(reason=reason)
    assert row.samples_per_s is not None, "what is usable has a figure"
    alike = [other for other in candidates if not differences(row, other)]
    # A row is its own best baseline; under strong scaling, one with as many micro-steps the next.
    alike.sort(
        key=lambda other: (
            other.case.id != row.case.id,
            other.case.accumulation_steps != row.case.accumulation_steps,
        )
    )
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
        return measured_against(row, usable[0], noise)
    if alike:
        return Comparison(reason=f"{name} has no valid figure")
    if candidates:
        keys = min((differences(row, other) for other in candidates), key=len)
        return Comparison(reason=f"{name} was measured with another {' and '.join(keys)}")
    return Comparison(reason=f"{name} was not measured")
