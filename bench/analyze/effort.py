"""Which cases need more launches: decided between rounds, from what has been measured so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.analyze.checks import UNFIT
from bench.analyze.figures import launches_of
from bench.analyze.launches import Launch, counted
from bench.analyze.stats import Estimate, figure_of, noise_of
from bench.plan.case import Effort
from bench.records.record import BROKEN_FLAGS, Record


def relative_width(estimate: Estimate) -> float | None:
    """Half the interval of a figure over the figure; None without an interval."""
    half = estimate.half_width
    return None if half is None else half / estimate.value


def cases_in_need(records: Sequence[Record], efforts: Mapping[str, Effort]) -> list[str]:
    """Cases whose interval is wider than asked and that may have more launches, the widest first.

    Cases with a launch that failed, and those whose figures are compared with nothing, are not
    worth more of anyone's time.

    Args:
        records: of the run so far, in the order in which they were made.
        efforts: what each case may have, by its id.
    """
    launches = launches_by_case(records)
    useless = {record.case.id for record in records if _is_useless(record)}
    useful = {id_: effort for id_, effort in efforts.items() if id_ not in useless}
    return too_wide(launches, useful)


def launches_by_case(records: Iterable[Record]) -> dict[str, list[Launch]]:
    """The launches of a run that gave a figure, by the case's id."""
    groups: dict[str, list[tuple[int, Record]]] = {}
    for place, record in enumerate(records):
        groups.setdefault(record.case.id, []).append((place, record))
    return {id_: launches_of(group) for id_, group in groups.items()}


def further_s(records: Iterable[Record], planned: Mapping[str, int]) -> float:
    """Seconds that launches beyond the plan's own number took, and the fork servers for them.

    Args:
        records: of a run.
        planned: launches of each case in the plan, by its id.
    """
    return sum(
        (record.elapsed_s or 0.0) + (record.restart_s or 0.0)
        for record in records
        if record.pass_ == "timing"
        and record.launch >= planned.get(record.case.id, record.launch + 1)
    )


def _is_useless(record: Record) -> bool:
    if record.pass_ == "parity":
        return record.parity is not None and record.parity.verdict == "failed"
    unfit = not (UNFIT.keys() | BROKEN_FLAGS).isdisjoint(record.flags)
    return record.pass_ == "timing" and (record.status != "ok" or unfit)


def too_wide(launches: Mapping[str, Sequence[Launch]], efforts: Mapping[str, Effort]) -> list[str]:
    """Likewise, of launches alone."""
    figures = counted(launches)
    noise = noise_of(figures.values())
    excess: dict[str, float] = {}
    for id_, effort in efforts.items():
        values = figures.get(id_, ())
        if not 2 <= len(values) < effort.max_launches:
            continue
        width = relative_width(figure_of(values, noise))
        if width is not None and width > effort.launch_interval:
            excess[id_] = width / effort.launch_interval
    return sorted(excess, key=lambda id_: -excess[id_])
