"""Predictions of what was measured here: cells of runs over links of known rate.

A study is a folder: ``profiles/*.json``, one a workload; ``links/NAME/collectives.jsonl``, what
``bench comm`` measured over each link; and below it any number of results folders, whose cases name
their link. A cell is a case with its launches. Nothing is fitted to any cell unless some are named
for it, and those are not scored.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from scipy.optimize import minimize_scalar

from bench.errors import BenchError, RecordsError
from bench.plan.case import Case
from bench.predict.curve import of_rows
from bench.predict.network import Network, Places
from bench.predict.scaling import Prediction, Wanted, predict
from bench.predict.schedules import SCHEDULES
from bench.records.collectives import COLLECTIVES, iterate_collectives
from bench.records.profile import Contention, Profile, read_profile
from bench.records.record import Record
from bench.records.scaling import Regret, Scored
from bench.records.store import RECORDS, iterate_records

LEAST_LAUNCHES = 5
MOST_NOISE = 0.02
"""Standard deviation of a cell's launches over their mean, beyond which it is left out."""
CAP = ("bucket_cap_mb", "bucket_cap_mb_list")
NO_LINK = "none"
"""Name of the link of what has none: processes of one host."""
STRONGEST = 1e-7
"""Seconds of computation for a byte on the bus, that a fit looks at: 100 times what gloo takes."""


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


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """All that a scoreboard of cells is made from."""

    profiles: list[Profile]
    networks: dict[str, Network]
    """By the name of the link."""
    cells: list[Cell]


def link_of(case: Case) -> str:
    """Name of a case's link, as the laboratory of emulated hosts sets it."""
    return str(getattr(case, "link", None) or NO_LINK)


def read_study(folder: Path) -> Study:
    """A study from its folder.

    Raises:
        RecordsError: there is none, or something that it needs is missing.
    """
    profiles = [read_profile(path) for path in sorted((folder / "profiles").glob("*.json"))]
    links = sorted(path.parent for path in (folder / "links").glob(f"*/{COLLECTIVES}"))
    if not profiles or not links:
        raise RecordsError(
            f"{folder}: a study has profiles/*.json and links/NAME/{COLLECTIVES}; "
            f"{len(profiles)} and {len(links)} are there"
        )
    networks = {path.name: _network(path) for path in links}
    records: list[Record] = []
    for path in sorted(folder.rglob(RECORDS)):
        records += iterate_records(path.parent)
    return Study(profiles=profiles, networks=networks, cells=cells_of(records))


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


class Scoreboard(msgspec.Struct, frozen=True, kw_only=True):
    """What a study says of the predictions."""

    scores: list[Scored]
    regrets: list[Regret]
    under_twice: int
    """Cells that count, whose communication takes less than twice their computation: beyond, every
    model is right."""


def score(study: Study, *, fit_on: str | None = None) -> Scoreboard:
    """Predict every cell.

    Args:
        study: of cells.
        fit_on: link whose cells are used to fit what overlap costs, and are not scored; None takes
            the profiles' own.

    Raises:
        BenchError: the link has no cells.
    """
    profiles = (
        study.profiles
        if fit_on is None
        else [_fitted(profile, study, fit_on) for profile in study.profiles]
    )
    scores: list[Scored] = []
    found: list[tuple[Cell, Prediction]] = []
    decided = 0
    for cell in study.cells:
        prediction = _predicted(cell, profiles, study)
        if prediction is None:
            continue
        left_out = cell.left_out
        if left_out is None and cell.link == fit_on:
            left_out = "used to fit what overlap costs"
        if left_out is None:
            found.append((cell, prediction))
            computed, moved = prediction.computation_s, prediction.communication_s
            decided += moved < 2 * computed
        scores.append(_scored(cell, prediction, left_out))
    return Scoreboard(scores=scores, regrets=_regrets(found), under_twice=decided)


def _predicted(cell: Cell, profiles: Sequence[Profile], study: Study) -> Prediction | None:
    """None, with a warning, for a cell that no profile, link or schedule is there for."""
    profile = next((one for one in profiles if _is_of(one.case, cell.case)), None)
    network = study.networks.get(cell.link)
    if profile is None or network is None or cell.case.strategy not in SCHEDULES:
        what = "profile" if profile is None else "link" if network is None else "schedule"
        warnings.warn(f"{cell.case.id}: not predicted, no {what} of it", stacklevel=2)
        return None
    case = cell.case
    wanted = Wanted(
        strategy=case.strategy,
        options=case.options,
        label=case.label,
        places=Places(hosts=case.nodes, per_host=case.world_size // case.nodes),
        accumulation_steps=case.accumulation_steps,
        accumulation_sync=case.accumulation_sync,
        backend=case.backend or "gloo",
    )
    try:
        return predict(profile, network, wanted)
    except BenchError as error:
        warnings.warn(f"{cell.case.id}: not predicted: {error}", stacklevel=2)
        return None


def _is_of(profile: Case, case: Case) -> bool:
    """Whether a profile is of a case's workload, at its batch, on such a device."""
    fields = (
        "workload",
        "preset",
        "workload_options",
        "device",
        "precision",
        "compile",
        "optimizer",
        "per_device_batch",
        "cores_per_device",
    )
    return all(getattr(profile, name) == getattr(case, name) for name in fields)


def _scored(cell: Cell, one: Prediction, left_out: str | None) -> Scored:
    case = cell.case
    return Scored(
        table=f"{case.workload}:{case.preset} at {cell.link}",
        row=case.label,
        strategy=case.strategy,
        devices=case.world_size,
        measured=cell.measured_s,
        predicted=one.step_s,
        no_overlap=one.no_overlap_s,
        full_overlap=one.full_overlap_s,
        left_out=left_out,
    )


def _regrets(found: Sequence[tuple[Cell, Prediction]]) -> list[Regret]:
    """Of each group of cells that differ in their buckets alone."""
    groups: dict[str, list[tuple[Cell, Prediction]]] = {}
    for cell, one in found:
        if cell.case.strategy == "ddp":
            groups.setdefault(_group(cell), []).append((cell, one))
    regrets = []
    for name, some in groups.items():
        if len(some) < 2:
            continue
        chosen = min(some, key=lambda pair: pair[1].step_s)[0]
        best = min(some, key=lambda pair: pair[0].measured_s)[0]
        regrets.append(
            Regret(
                group=name,
                predicted_best=chosen.case.label,
                measured_best=best.case.label,
                cost=chosen.measured_s / best.measured_s - 1,
            )
        )
    return regrets


def _group(cell: Cell) -> str:
    case = cell.case
    others = {
        name: value
        for name, value in case.options.items()
        if name not in CAP and value not in (None, False, "none")
    }
    settings = ", ".join(f"{name}={value}" for name, value in sorted(others.items()))
    steps = f", {case.accumulation_steps} micro-steps" if case.accumulation_steps > 1 else ""
    where = f"{case.workload}:{case.preset} x{case.world_size} at {cell.link}"
    return f"{where}: {settings}{steps}" if settings or steps else where


def _fitted(profile: Profile, study: Study, link: str) -> Profile:
    """The profile with what a byte on the bus takes of computation, fitted to the cells of a link.

    The least mean of relative errors; the one number that is fitted at all.
    """
    cells = [
        one
        for one in study.cells
        if one.link == link and one.left_out is None and _is_of(profile.case, one.case)
    ]
    if not cells:
        raise BenchError(f"no cell over {link!r} can be used to fit {profile.case.workload}")
    before = profile.contention or Contention(source="fitted")

    def with_share(stolen: float) -> Profile:
        contention = Contention(
            computation=before.computation,
            most_bus_bytes_per_s=before.most_bus_bytes_per_s,
            stolen_s_per_byte=stolen,
            source=f"fitted to {link}",
        )
        return msgspec.structs.replace(profile, contention=contention)

    def loss(stolen: float) -> float:
        errors = []
        for cell in cells:
            one = _predicted(cell, [with_share(stolen)], study)
            if one is not None:
                errors.append(abs(one.step_s / cell.measured_s - 1))
        return statistics.fmean(errors) if errors else 0.0

    found = minimize_scalar(
        loss, bounds=(0.0, STRONGEST), method="bounded", options={"xatol": 1e-12}
    )
    return with_share(float(found.x))
