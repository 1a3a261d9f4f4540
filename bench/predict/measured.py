"""Predictions of what was measured here, cell by cell.

Nothing is fitted to any cell unless those of one link are named for it, which are then not scored.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from scipy.optimize import minimize

from bench.errors import BenchError
from bench.plan.case import Case
from bench.predict.network import Places
from bench.predict.scaling import Prediction, Wanted, predict
from bench.predict.schedules import SCHEDULES
from bench.predict.study import Cell, Study, cells_of
from bench.records.profile import Contention, Profile
from bench.records.scaling import Regret, Scoreboard, Scored
from bench.records.store import iterate_records

CAP = ("bucket_cap_mb", "bucket_cap_mb_list")
STRONGEST = 1e-7
"""Seconds of computation for a byte on the bus, up to which a fit looks: 100 times gloo's."""
FACTORS_OF_COLLECTIVES = (0.5, 2.0)
"""And times that collectives take as long as their curves have it."""
KEPT_FOR_FIT = "kept for a fit"
PATIENCE = {"maxfev": 200, "xatol": 1e-4, "fatol": 1e-5}


def score(study: Study, *, fit_on: str | None = None) -> Scoreboard:
    """Predict every cell.

    Args:
        study: of cells.
        fit_on: link whose cells are used to fit what overlap costs, and do not count; None takes
            the profiles' own. Nor do those of the link that the study keeps for a fit, either way.

    Raises:
        BenchError: the link has no cells.
    """
    profiles = _profiles(study, fit_on)
    scores: list[Scored] = []
    found: list[tuple[Cell, Prediction]] = []
    decided = 0
    for cell in study.cells:
        prediction = _predicted(cell, profiles, study)
        if prediction is None:
            continue
        left_out = cell.left_out
        if left_out is None and cell.link in {fit_on, study.fit_on}:
            left_out = KEPT_FOR_FIT
        if left_out is None:
            found.append((cell, prediction))
            computed, moved = prediction.computation_s, prediction.communication_s
            decided += moved < 2 * computed
        scores.append(_scored(cell, prediction, left_out))
    return Scoreboard(fitted_on=fit_on, scores=scores, regrets=_regrets(found), under_twice=decided)


def boards(study: Study, fit_on: str | None = None) -> list[Scoreboard]:
    """The scoreboard with nothing fitted; and, if there is a link to fit on, with two numbers.

    Args:
        study: of cells.
        fit_on: the link; None for that which the study keeps for it, if it does.
    """
    link = fit_on or (study.fit_on if _can_fit(study) else None)
    return [score(study), *([score(study, fit_on=link)] if link is not None else [])]


def _can_fit(study: Study) -> bool:
    """Whether every model has cells that count over the link that the study keeps for a fit."""
    kept = [one for one in study.cells if one.link == study.fit_on and one.left_out is None]
    lacking = [
        profile.case.workload
        for profile in study.profiles
        if not any(_is_of(profile.case, one.case) for one in kept)
    ]
    if study.fit_on is not None and lacking:
        warnings.warn(
            f"nothing is fitted: no cell of {lacking[0]} over {study.fit_on}", stacklevel=2
        )
    return not lacking


def _profiles(study: Study, fit_on: str | None) -> list[Profile]:
    if fit_on is None:
        return study.profiles
    return [_fitted(profile, study, fit_on) for profile in study.profiles]


def beside(
    study: Study, *, fit_on: str | None = None
) -> Iterator[tuple[Path, list[tuple[Prediction, Profile]]]]:
    """Each results folder of a study, with what is predicted of its cases.

    Args:
        study: with its folders.
        fit_on: as in ``score``.
    """
    profiles = _profiles(study, fit_on)
    for folder in study.folders:
        found: list[tuple[Prediction, Profile]] = []
        for cell in cells_of(iterate_records(folder)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # ``score`` has named what is not predicted
                one = _predicted(cell, profiles, study)
            if one is not None:
                profile = next(p for p in profiles if _is_of(p.case, cell.case))
                # The case itself, with what a prediction knows nothing of.
                found.append((msgspec.structs.replace(one, case=cell.case), profile))
        yield folder, found


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
    """The profile with two numbers fitted to the cells of a link; nothing else is fitted at all.

    What a byte on the bus takes of computation, and how long collectives take in a step next to
    their curves: with the least mean of relative errors.
    """
    cells = [
        one
        for one in study.cells
        if one.link == link and one.left_out is None and _is_of(profile.case, one.case)
    ]
    if not cells:
        raise BenchError(f"no cell over {link!r} can be used to fit {profile.case.workload}")
    before = profile.contention or Contention(source="none")

    def with_numbers(numbers: Sequence[float]) -> Profile:
        contention = msgspec.structs.replace(
            before,
            stolen_s_per_byte=float(numbers[0]) * STRONGEST,
            collectives=float(numbers[1]),
            source=f"fitted to {link}",
        )
        return msgspec.structs.replace(profile, contention=contention)

    def loss(numbers: Sequence[float]) -> float:
        told = [with_numbers(numbers)]
        found = ((cell, _predicted(cell, told, study)) for cell in cells)
        errors = [abs(one.step_s / cell.measured_s - 1) for cell, one in found if one is not None]
        return statistics.fmean(errors) if errors else 0.0

    start = [min(max(before.stolen_s_per_byte / STRONGEST, 0.02), 1.0), 1.0]
    bounds = [(0.0, 1.0), FACTORS_OF_COLLECTIVES]
    found = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options=PATIENCE)
    return with_numbers(found.x)
