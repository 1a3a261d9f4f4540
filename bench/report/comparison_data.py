"""Two runs beside each other, as plain data for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bench.analyze.compare import Compared, Judgement, Pair, Side
from bench.analyze.rows import PEAKS, Row
from bench.report import cells


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One pair as plain data; ratios are of throughputs, new over base."""

    id: str
    workload: str
    preset: str
    strategy: str
    world_size: int
    precision: str
    unit: str
    base_per_s: float | None
    new_per_s: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    verdict: str | None
    reason: str | None
    smallest_clear_slowdown: float | None
    peak_of: str | None
    """What memory is meant: of ``analyze.rows.PEAKS``."""
    base_peak_bytes: int | None
    """Of the device that holds most."""
    new_peak_bytes: int | None
    notes: list[str]


def as_data(found: Compared, judged: Judgement | None) -> dict[str, Any]:
    """The comparison for programs."""
    data: dict[str, Any] = {
        "base": _side(found.base),
        "new": _side(found.new),
        "across_machines": bool(found.unlike),
        "differences": found.unlike,
        "pairs": [_line(pair) for pair in found.pairs],
        "only_base": [row.case.id for row in found.only_base],
        "only_new": [row.case.id for row in found.only_new],
        "shift": found.shift,
    }
    if judged is not None:
        data["fail_on_regression"] = {
            "percent": judged.percent,
            "failed": judged.has_failed,
            "regressions": _ids(judged.regressions),
            "lost": _ids(judged.lost),
            "too_noisy_to_see": _ids(judged.blind),
            "not_compared": _ids(judged.unjudged),
        }
    return data


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "run_id": side.info.run_id,
        "suite": str(side.info.suite.get("name", "")),
        "started_at": side.info.started_at,
        "commit": side.info.environment.get("commit"),
    }


def _ids(pairs: Sequence[Pair]) -> list[str]:
    return [pair.new.case.id for pair in pairs]


def _line(pair: Pair) -> Line:
    case, ratio, change = pair.new.case, pair.change.ratio, pair.change
    kind = kind_of_memory(pair)
    return Line(
        id=case.id,
        workload=case.workload,
        preset=case.preset,
        strategy=case.label,
        world_size=case.world_size,
        precision=case.precision,
        unit=pair.new.unit,
        base_per_s=_per_s(pair.base),
        new_per_s=_per_s(pair.new),
        ratio=None if ratio is None else ratio.value,
        ratio_low=None if ratio is None else ratio.low,
        ratio_high=None if ratio is None else ratio.high,
        verdict=change.verdict,
        reason=change.reason,
        smallest_clear_slowdown=pair.smallest,
        peak_of=kind,
        base_peak_bytes=_peak(pair.base, kind),
        new_peak_bytes=_peak(pair.new, kind),
        notes=pair.notes,
    )


def _per_s(row: Row) -> float | None:
    return None if row.samples_per_s is None else row.samples_per_s.value * row.units_per_sample


def kind_of_memory(pair: Pair) -> str | None:
    """The peak that both runs know, the most telling first; None where there is none."""
    return next(
        (
            kind
            for kind in PEAKS
            if cells.known(cells.memory_of(pair.new, kind))
            and cells.known(cells.memory_of(pair.base, kind))
        ),
        None,
    )


def _peak(row: Row, kind: str | None) -> int | None:
    return None if kind is None else max(cells.known(cells.memory_of(row, kind)))
