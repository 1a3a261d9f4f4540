"""``bench recommend --predict``: what to use on devices that are not here."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.cli.options import size_in_bytes
from bench.cli.output import deliver, say
from bench.errors import BenchError

if TYPE_CHECKING:
    from bench.predict.site import Site
    from bench.predict.sweep import Question
    from bench.records.profile import Profile


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says, beside what is to be trained."""

    on: str
    throughput: float | None
    per_device_batch: int | None
    strategies: str | None
    settings: dict[str, Any]
    """Of the case, as a suite names them; None for what was not given."""
    memory_gib: float | None
    allowance: str | None
    curve: Path | None


def recommend_predicted(subject: str, asked: Asked, *, json: bool, out: Path | None) -> bool:
    """Print or write a recommendation; returns whether there is one.

    Args:
        subject: a profile's file, or a workload.
        asked: the rest of the command line.
        json: whether for programs.
        out: file to write to.

    Raises:
        BenchError: something is missing, or not known.
    """
    from bench.predict.memory import allowance_for
    from bench.predict.recommend import ACCELERATOR, STRATEGIES, Wish, recommend
    from bench.predict.site import site_of
    from bench.report.advice import as_data, markdown

    site = site_of(asked.on)
    if site.places.ranks < 2:
        raise BenchError(f"--on {asked.on!r}: one device leaves nothing to choose; name several")
    question = _question(subject, asked, site)
    allowance = (
        allowance_for(ACCELERATOR)
        if asked.allowance is None
        else size_in_bytes("--allowance", asked.allowance)
    )
    memory = site.device.memory_mib * 2**20
    if asked.memory_gib is not None:
        memory = round(asked.memory_gib * 2**30)
    wish = Wish(
        where=asked.on,
        places=site.places,
        strategies=asked.strategies or STRATEGIES,
        memory_bytes=memory,
        allowance_bytes=allowance,
    )
    advice = recommend(question, wish, told=say)
    deliver(as_data(advice) if json else markdown(advice), out)
    return advice.best is not None


def _question(subject: str, asked: Asked, site: Site) -> Question:
    from bench.predict.question import question_from

    path = Path(subject)
    if path.suffix == ".json" or path.is_file():
        return question_from(_profile(path, asked), site, curve=asked.curve, basis=_of(path))
    return question_from(
        _made(subject, asked, site),
        site,
        curve=asked.curve,
        basis=(
            f"From one device's throughput, {asked.throughput:g} samples a second at a batch of "
            f"{asked.per_device_batch}, as given, and {subject}'s own step on tensors without data."
        ),
    )


def _of(path: Path) -> str:
    return f"From a profile that was measured on one device: {path.name}."


def _profile(path: Path, asked: Asked) -> Profile:
    from bench.predict.question import with_contention
    from bench.records.profile import read_profile

    given = {"throughput": asked.throughput, "per-device-batch": asked.per_device_batch}
    given |= {name.replace("_", "-"): value for name, value in asked.settings.items()}
    named = next((name for name, value in given.items() if value is not None), None)
    if named is not None:
        raise BenchError(f"--{named}: the profile says that; give a workload in its place")
    profile = read_profile(path)
    if profile.case.device == "cpu":
        raise BenchError(
            f"{path}: is of a CPU, and says little of accelerators; give {profile.case.workload}, "
            "with the --throughput of one device and the --per-device-batch of that figure"
        )
    return with_contention(profile)


def _made(workload: str, asked: Asked, site: Site) -> Profile:
    from bench.predict.catalogue import catalogue
    from bench.predict.memory_plan import planned_cases, suite_of
    from bench.predict.recommend import ACCELERATOR
    from bench.predict.workload_profile import profile_of_workload

    if asked.throughput is None or asked.per_device_batch is None:
        raise BenchError(
            "give the --throughput of one such device, in samples a second, and the "
            "--per-device-batch of that figure; or a profile of it, from bench predict profile"
        )
    settings = asked.settings | {"per_device_batch": asked.per_device_batch}
    suite = suite_of(workload, "single", [1], device=ACCELERATOR, **settings)
    (planned,) = planned_cases(suite, ACCELERATOR)
    if planned.skip_reason is not None:
        raise BenchError(f"{workload}: {planned.skip_reason}")
    return profile_of_workload(
        planned.case, throughput=asked.throughput, device=site.device, known=catalogue()
    )
