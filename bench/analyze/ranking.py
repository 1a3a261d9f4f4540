"""Which rows of a model are the fastest on as many devices, as far as noise lets one tell.

The first of some rows was seen in the same figures that are then compared with it, and any two of
them could have been the first and the second. So all of these pairs count, those not looked at as
if nothing spoke for a difference, together with all comparisons that the report's tables make.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from bench.analyze.checks import UNFIT
from bench.analyze.others import measured_against
from bench.analyze.rows import Comparison, Row, Verdict, family, noise_among
from bench.analyze.stats import holm
from bench.analyze.verdicts import COMPARISONS, noise_floor, pairs_of, verdict_of
from bench.plan.case import Case

REFERENCE = "reference_implementation"
LOSSY = "lossy_by_design"
SLOWED = "profile_slowed"
OPPOSITE: dict[Verdict, Verdict] = {"faster": "slower", "slower": "faster"}


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that train the same in one place, of which one has the highest figure."""

    rows: list[Row]
    """Any of which could have been the first: the highest figure first."""
    beside: list[Row] = []
    """That are set beside the first, and could not have been it."""
    floor: float | None
    """The table's noise floor on as many devices."""


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Rows on as many devices in one place, set beside the one with the highest figure."""

    rows: list[Row]
    """All on as many devices in that place, those that are no candidates among them."""
    best: Row
    level: list[Row]
    """That cannot be told from it: no clear difference, or a single launch. Fastest first."""
    behind: list[tuple[Row, float]]
    """That are clearly slower, each with the change from the best, such as -0.2; fastest first."""
    ahead: list[Row]
    """That are clearly faster, and lossy by design: not ranked, since they train otherwise."""
    with_fewer: Row | None
    """The fastest on fewer devices, where its figure is at least as high."""


def is_comparable(row: Row) -> bool:
    """Whether a row is a candidate: measured, not proved wrong, and fit to be compared.

    A reference implementation is none, since its place among the others does not carry over.
    """
    is_fit = not row.is_proved_wrong and UNFIT.keys().isdisjoint(row.flags)
    return row.samples_per_s is not None and is_fit and REFERENCE not in row.flags


def is_lossy(row: Row) -> bool:
    """Whether a row trains on other gradients than one device would, by design."""
    return row.parity is not None and row.parity.verdict == LOSSY


def problem(case: Case) -> object:
    """Equal for cases that train the same model on the same data: all settings are free."""
    size = case.global_batch if case.scaling == "strong" else None
    data = str((case.data, case.data_options))
    return family(case), case.optimizer, data, case.seed, case.cores_per_device, size


def way(case: Case) -> tuple[str, str, int]:
    """Precision, compile mode and micro-steps, which only tables of settings compare."""
    return case.precision, case.compile, case.accumulation_steps


def place(case: Case) -> tuple[int, str | None, float | None]:
    """Hosts, and the speed and latency of the links between them: unlike ones are not ranked."""
    return (1, None, None) if case.nodes == 1 else (case.nodes, case.link, case.latency_ms)


def rate(row: Row) -> float:
    """Samples a second, to sort by."""
    return 0.0 if row.samples_per_s is None else row.samples_per_s.value


def rankings(rows: Sequence[Row]) -> list[Ranking]:
    """One for each problem, way and place, on most devices on which anything can be ranked there.

    Args:
        rows: of the whole report.
    """
    found = _spoken_of(rows)
    groups = [_group(there, rows) for there, _ in found]
    every = leads(groups, rows)
    return [
        _ranking(there, of_problem, group, compared)
        for (there, of_problem), group, compared in zip(found, groups, every, strict=True)
    ]


def ranking_among(some: Sequence[Row], rows: Sequence[Row]) -> Ranking | None:
    """Likewise of some rows on as many devices in one place; None without a candidate.

    Args:
        some: of the report.
        rows: the whole report, of whose rankings this is one more.
    """
    if not any(map(_is_candidate, some)):
        return None
    group = _group(some, rows)
    others = [_group(there, rows) for there, _ in _spoken_of(rows)]
    return _ranking(list(some), some, group, leads([group, *others], rows)[0])


def _spoken_of(rows: Sequence[Row]) -> list[tuple[list[Row], list[Row]]]:
    """(rows of one place on most devices, all rows of the problem)."""
    return [some for group in _by_problem(rows) for some in _places(group)]


def _by_problem(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault((problem(row.case), *way(row.case)), []).append(row)
    return list(groups.values())


def _is_candidate(row: Row) -> bool:
    return is_comparable(row) and not is_lossy(row)


def _places(rows: list[Row]) -> list[tuple[list[Row], list[Row]]]:
    """(rows of one place, all rows of the problem), for each place on most devices."""
    size = max((row.case.world_size for row in rows if _is_candidate(row)), default=0)
    places: dict[object, list[Row]] = {}
    for row in rows:
        if row.case.world_size == size:
            places.setdefault(place(row.case), []).append(row)
    return [(some, rows) for some in places.values() if any(map(_is_candidate, some))]


def _group(there: Sequence[Row], rows: Sequence[Row]) -> Group:
    able = sorted(filter(_is_candidate, there), key=rate, reverse=True)
    best = able[0]
    return Group(
        rows=[row for row in able if _is_alike(row, best)],
        beside=[r for r in there if is_lossy(r) and is_comparable(r) and _is_alike(r, best)],
        floor=floor_of(best.case, rows),
    )


def _is_alike(row: Row, best: Row) -> bool:
    return row.environment in {None, best.environment}


def floor_of(case: Case, rows: Sequence[Row]) -> float | None:
    """The noise floor of a case's table, on as many devices."""
    table = family(case)
    return noise_floor([row for row in rows if family(row.case) == table], case.world_size)


def _ranking(
    there: list[Row], of_problem: Sequence[Row], group: Group, compared: Sequence[Comparison]
) -> Ranking:
    best, *others = group.rows
    level: list[Row] = []
    behind: list[tuple[Row, float]] = []
    for row, lead in zip(others, compared, strict=False):
        if lead.verdict == "faster" and lead.ratio is not None:
            behind.append((row, 1 / lead.ratio.value - 1))
        else:
            level.append(row)
    lossy = zip(group.beside, compared[len(others) :], strict=True)
    return Ranking(
        rows=there,
        best=best,
        level=level,
        behind=behind,
        ahead=[row for row, lead in lossy if lead.verdict == "slower"],
        with_fewer=fastest_on_fewer(best, [r for r in of_problem if _is_candidate(r)]),
    )


def fastest_on_fewer(best: Row, rows: Sequence[Row]) -> Row | None:
    """The fastest on fewer devices than a row, where its figure is at least as high.

    Args:
        best: of some devices.
        rows: that may be used, on any number of them; of links, those of one speed count.
    """
    places = {place(best.case), (1, None, None)}
    fewer = [
        row
        for row in rows
        if row.case.world_size < best.case.world_size and place(row.case) in places
    ]
    fastest = max(fewer, key=rate, default=None)
    return fastest if fastest is not None and rate(fastest) >= rate(best) else None


def leads(groups: Sequence[Group], rows: Sequence[Row]) -> list[list[Comparison]]:
    """The first of each group over each of its others, and of those beside it, with verdicts.

    What a table compares as well has its verdict from there. All else is clear only among all
    comparisons of the tables and all pairs of the groups that could have been looked at.

    Args:
        groups: all that are spoken of together.
        rows: of the whole report, as it judged them.
    """
    noise, tabled = noise_among(rows), pairs_of(rows)
    found = [
        [measured_against(group.rows[0], row, noise) for row in _others(group)] for group in groups
    ]
    own = [
        one.chance
        for group, some in zip(groups, found, strict=True)
        for row, one in zip(_others(group), some, strict=True)
        if one.chance is not None and _pair(group, row) not in tabled
    ]
    possible = sum(_pairs(group) for group in groups)
    known = sum(_tabled(group, tabled) for group in groups)
    unseen = max(0, possible - known - len(own))
    corrected = iter(holm([*own, *tabled.values(), *[1.0] * unseen])[: len(own)])
    told: list[list[Comparison]] = []
    for group, some in zip(groups, found, strict=True):
        told.append([])
        for row, one in zip(_others(group), some, strict=True):
            verdict = None
            if one.chance is not None and one.ratio is not None:
                verdict = (
                    _of_table(group.rows[0], row)
                    if _pair(group, row) in tabled
                    else verdict_of(one.ratio, next(corrected), group.floor)
                )
            told[-1].append(msgspec.structs.replace(one, verdict=verdict))
    return told


def _others(group: Group) -> list[Row]:
    return [*group.rows[1:], *group.beside]


def _pair(group: Group, row: Row) -> frozenset[str]:
    return frozenset({group.rows[0].case.id, row.case.id})


def _pairs(group: Group) -> int:
    """Pairs that could have been the first and another."""
    count = len(group.rows)
    return count * (count - 1) // 2 + count * len(group.beside)


def _tabled(group: Group, tabled: Iterable[frozenset[str]]) -> int:
    """How many of them a table compares."""
    first = {row.case.id for row in group.rows}
    every = first | {row.case.id for row in group.beside}
    return sum(pair <= every and bool(pair & first) for pair in tabled)


def _of_table(first: Row, other: Row) -> Verdict | None:
    """What a table says of the first, next to the other."""
    for row, below in ((first, other), (other, first)):
        for name in COMPARISONS:
            one: Comparison = getattr(row, name)
            if one.against == below.case.id and one.verdict is not None:
                return one.verdict if row is first else OPPOSITE.get(one.verdict, one.verdict)
    return None


def exposed_share(row: Row) -> float | None:
    """Share of a profiled step in which bytes moved and nothing was computed.

    None where that is not known, or the profile slowed the step, so that it is of another one.
    """
    found = row.communication
    if found is None or found.exposed_s is None or not found.profiled_step_s:
        return None
    return None if SLOWED in row.flags else max(0.0, found.exposed_s) / found.profiled_step_s


def wait_share(row: Row) -> float | None:
    """Share of a profiled step in which a rank waited for late ones; None as above."""
    found = row.communication
    if found is None or found.wait_s is None or not found.profiled_step_s:
        return None
    return None if SLOWED in row.flags else max(0.0, found.wait_s) / found.profiled_step_s


def sync_share(row: Row) -> float | None:
    """Share of forward and backward that synchronising gradients takes; None where not known.

    From steps that were timed in turns with and without it. What it slows down counts, too, such as
    computation whose cores it takes; what is communicated without it, such as FSDP's gathers, does
    not.
    """
    found = row.communication
    if row.sync_cost is None or found is None or not found.sync_pairs_s:
        return None
    whole_s = statistics.median(with_sync for with_sync, _ in found.sync_pairs_s)
    return max(0.0, row.sync_cost.value) / whole_s if whole_s else None
