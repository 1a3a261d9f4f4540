"""Which rows of a model are the fastest on as many devices, as far as noise lets one tell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.analyze.checks import UNFIT
from bench.analyze.rows import Row
from bench.analyze.stats import NOTHING_KNOWN, Noise, chance_of, holm, ratio_of
from bench.analyze.verdicts import noise_floor, verdict_of

REFERENCE = "reference_implementation"
LOSSY = "lossy_by_design"


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Rows on as many devices, set beside the one with the highest figure."""

    best: Row
    level: list[Row]
    """That cannot be told from it: no clear difference, or a single launch. Fastest first."""
    behind: list[tuple[Row, float]]
    """That are clearly slower, each with the change from the best, such as -0.2; fastest first."""


def is_comparable(row: Row) -> bool:
    """Whether a row is a candidate: measured, not proved wrong, and fit to be compared.

    A reference implementation is none, since its place among the others does not carry over.
    """
    is_fit = not row.is_proved_wrong and UNFIT.keys().isdisjoint(row.flags)
    return row.samples_per_s is not None and is_fit and REFERENCE not in row.flags


def is_lossy(row: Row) -> bool:
    """Whether a row trains on other gradients than one device would, by design."""
    return row.parity is not None and row.parity.verdict == LOSSY


def ranking(rows: Sequence[Row], noise: Noise = NOTHING_KNOWN) -> Ranking | None:
    """The candidates on as many devices, set beside the fastest; None without any.

    Args:
        rows: of one model on as many devices.
        noise: of the run.
    """
    found = [row for row in rows if is_comparable(row)]
    found.sort(key=lambda row: -row.samples_per_s.value if row.samples_per_s else 0.0)
    if not found:
        return None
    best, others = found[0], found[1:]
    alike = [row for row in others if row.environment in {None, best.environment}]
    chances = [chance_of(row.figures, best.figures, noise) for row in alike]
    corrected = iter(holm([chance for chance in chances if chance is not None]))
    floor = noise_floor(rows, best.case.world_size)
    level: list[Row] = []
    behind: list[tuple[Row, float]] = []
    for row, chance in zip(alike, chances, strict=True):
        ratio = ratio_of(row.figures, best.figures, noise)
        is_behind = chance is not None and verdict_of(ratio, next(corrected), floor) == "slower"
        if is_behind:
            behind.append((row, ratio.value - 1))
        else:
            level.append(row)
    return Ranking(best=best, level=level, behind=behind)


def exposed_share(row: Row) -> float | None:
    """Share of a profiled step in which bytes moved and nothing was computed; None if unknown."""
    found = row.communication
    if found is None or found.exposed_s is None or not found.profiled_step_s:
        return None
    return max(0.0, found.exposed_s) / found.profiled_step_s


def wait_share(row: Row) -> float | None:
    """Share of a profiled step in which a rank waited for late ones; None if unknown."""
    found = row.communication
    if found is None or found.wait_s is None or not found.profiled_step_s:
        return None
    return max(0.0, found.wait_s) / found.profiled_step_s
