"""A study: runs over links of known rate, with what is needed to predict them.

A folder: ``profiles/*.json``, one or more a workload; ``links/NAME/collectives.jsonl``, what
``bench comm`` measured over each link; and below it any number of results folders, whose cases name
their link. A cell is a case with its launches. ``study.json``, if it is there, says what was fixed
beforehand.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bench.errors import RecordsError
from bench.plan.case import Case
from bench.predict.curve import of_rows
from bench.predict.network import Network
from bench.records.collectives import COLLECTIVES, holds_collectives, iterate_collectives
from bench.records.lines import place_of
from bench.records.profile import Profile, read_profile
from bench.records.record import Record
from bench.records.store import RECORDS, iterate_records

STUDY, PROFILES, LINKS = "study.json", "profiles", "links"
LEAST_LAUNCHES = 5
MOST_NOISE = 0.02
"""Standard deviation of a cell's launches over their mean, beyond which it is left out."""
NO_LINK = "none"
"""Name of the link of what has none: processes of one host."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A case and its launches."""

    case: Case
    link: str
    step_s: list[float]
    """Of each launch: the global batch over throughput, so that of the slowest process."""

    @property
    def measured_s(self) -> float:
        """Median of the launches."""
        return statistics.median(self.step_s)

    @property
    def noise(self) -> float:
        """Standard deviation as a share of the mean; 0 for one launch."""
        if len(self.step_s) < 2:
            return 0.0
        return statistics.stdev(self.step_s) / statistics.fmean(self.step_s)

    @property
    def left_out(self) -> str | None:
        """Why its error does not count; None where it does."""
        if len(self.step_s) < LEAST_LAUNCHES:
            return f"{len(self.step_s)} launches, fewer than {LEAST_LAUNCHES}"
        if self.noise > MOST_NOISE:
            return f"noisier than {MOST_NOISE:.0%}"
        return None


class Fixed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was fixed before anything was measured."""

    fit_on: str | None = None
    """Link whose cells may be used for a fit, and never count."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """All that a scoreboard of cells is made from."""

    profiles: list[Profile]
    networks: dict[str, Network]
    """By the name of the link."""
    cells: list[Cell]
    folders: list[Path] = []
    """Of the runs that the cells are from."""
    fit_on: str | None = None
    """See ``Fixed``."""


def link_of(case: Case) -> str:
    """Name of a case's link, as the laboratory of emulated hosts sets it."""
    return str(getattr(case, "link", None) or NO_LINK)


def read_study(folder: Path) -> Study:
    """A study from its folder.

    Raises:
        RecordsError: there is none, or something that it needs is missing.
    """
    profiles = [read_profile(path) for path in sorted((folder / PROFILES).glob("*.json"))]
    links = [path for path in sorted((folder / LINKS).glob("*")) if holds_collectives(path)]
    if not profiles or not links:
        raise RecordsError(
            f"{folder}: a study has {PROFILES}/*.json and {LINKS}/NAME/{COLLECTIVES}; "
            f"{len(profiles)} and {len(links)} are there"
        )
    networks = {path.name: _network(path) for path in links}
    found = {path.parent for path in folder.rglob(f"{RECORDS}*")}
    folders = sorted(one for one in found if place_of(one, RECORDS) is not None)
    records = [record for one in folders for record in iterate_records(one)]
    return Study(
        profiles=typical(profiles),
        networks=networks,
        cells=cells_of(records),
        folders=folders,
        fit_on=_fixed(folder / STUDY).fit_on,
    )


def typical(profiles: Iterable[Profile]) -> list[Profile]:
    """Of several profiles of one case that with the median step, the quicker of two in the middle.

    As it is: medians of parts of several would be of no step that was measured.
    """
    groups: dict[str, list[Profile]] = {}
    for one in profiles:
        groups.setdefault(one.case.id, []).append(one)
    return [
        sorted(some, key=lambda one: one.step_s)[(len(some) - 1) // 2] for some in groups.values()
    ]


def _fixed(path: Path) -> Fixed:
    if not path.exists():
        return Fixed()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Fixed)
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordsError(f"{path}: cannot be read: {error}") from error


def _network(folder: Path) -> Network:
    """Of one rank on each host, over a link that was measured."""
    rows = list(iterate_collectives(folder))
    is_gloo = any(row.backend == "gloo" for row in rows)
    return Network(
        name=folder.name, curves=of_rows(rows), over_hosts=True, half_of_all_reduce=not is_gloo
    )


def cells_of(records: Iterable[Record]) -> list[Cell]:
    """The cells of runs, of strategies that communicate; one that failed its proof is none."""
    all_records = list(records)
    wrong = {
        one.case.id
        for one in all_records
        if one.parity is not None and one.parity.verdict == "failed"
    }
    groups: dict[str, list[Record]] = {}
    for one in all_records:
        is_timed = one.pass_ == "timing" and one.status == "ok" and one.throughput is not None
        if is_timed and one.case.world_size > 1 and one.case.id not in wrong:
            groups.setdefault(one.case.id, []).append(one)
    return [
        Cell(
            case=some[0].case,
            link=link_of(some[0].case),
            step_s=[
                one.case.global_batch / one.throughput.samples_per_s
                for one in some
                if one.throughput is not None
            ],
        )
        for some in groups.values()
    ]
