"""From what a user says to what is asked: a profile, a network, and the error to expect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.errors import BenchError
from bench.plan.case import Scaling
from bench.predict.catalogue import catalogue, network_of
from bench.predict.curve import of_rows
from bench.predict.network import Network, Places
from bench.predict.published_profile import profile_of, single_of
from bench.predict.scoreboard import expected_errors, published_scores
from bench.predict.site import Site, site_of
from bench.predict.sweep import Question, places_of
from bench.records.collectives import Collective, iterate_collectives
from bench.records.profile import Contention, Profile, read_profile

MOST_DEVICES = 1024
"""That are predicted where no numbers are asked for."""


def question_of(  # noqa: PLR0913 - each known by its name
    on: str,
    *,
    profile: Path | None,
    model: str | None,
    throughput: float | None,
    per_device_batch: int | None,
    gradient_mib: float | None,
    optimizer: str,
    curve: Path | None,
    scaling: Scaling,
    accumulation_steps: int,
) -> tuple[Question, Site]:
    """What is asked, and where.

    Args:
        on: the devices, as ``site_of`` reads them.
        profile: file of one; or, without:
        model: of the catalogue.
        throughput: of one device, in samples a second.
        per_device_batch: of that figure.
        gradient_mib: of a model that the catalogue does not know.
        optimizer: of the model.
        curve: folder of ``bench comm``, in the place of what is known of a host's links.
        scaling: which batch stays the same.
        accumulation_steps: micro-steps of a step.

    Raises:
        BenchError: something is missing, or not known.
    """
    site = site_of(on)
    if profile is not None:
        if model is not None or throughput is not None:
            raise BenchError("give a --profile, or a --model with its --throughput, and not both")
        found = with_contention(read_profile(profile))
        basis = f"From a profile that was {found.source} on one device: {profile.name}."
    elif (model is None and gradient_mib is None) or throughput is None or per_device_batch is None:
        raise BenchError(
            "give a --profile of bench predict profile; or a --model, or --gradient-mib, with the "
            "--throughput of one device and the --per-device-batch of that figure"
        )
    else:
        name = model or "a model"
        single = single_of(
            model=name,
            device=site.device.name,
            throughput=throughput,
            per_device_batch=per_device_batch,
            optimizer=optimizer,
            gradient_bytes=None if gradient_mib is None else round(gradient_mib * 2**20),
        )
        found = profile_of(single, catalogue())
        basis = (
            f"From one device's throughput, {throughput:g} samples a second at a batch of "
            f"{per_device_batch}, and counts of {name}'s gradients."
        )
    question = msgspec.structs.replace(
        question_from(found, site, curve=curve, basis=basis),
        scaling=scaling,
        accumulation_steps=accumulation_steps,
    )
    return question, site


def question_from(
    profile: Profile, site: Site, *, curve: Path | None = None, basis: str = ""
) -> Question:
    """What is asked of a profile on devices.

    Args:
        profile: of one of them.
        site: the devices.
        curve: folder of ``bench comm``, in the place of what is known of a host's links.
        basis: what it rests on, a sentence; the links are named behind it.

    Raises:
        BenchError: the links are not known, or nothing was measured of them.
    """
    network, backend = _network(site, curve)
    return Question(
        profile=profile,
        network=network,
        backend=backend,
        errors=expected_errors(published_scores()),
        basis=f"{basis} Links: {network.name}.",
    )


def _network(site: Site, curve: Path | None) -> tuple[Network, str]:
    """The links, and the backend that goes over them."""
    network = network_of(site.link, site.between)
    if curve is None:
        return network, "nccl"
    rows = list(iterate_collectives(curve))
    backend = next((row.backend for row in rows if row.status == "ok"), "nccl")
    return measured_network(network, rows, name=curve.name), backend


def measured_network(known: Network, rows: Sequence[Collective], *, name: str) -> Network:
    """A network whose curves within a host were measured; what is not, stays as it was known.

    Raises:
        BenchError: no row is a measurement among several ranks.
    """
    curves = of_rows(rows)
    if not curves:
        raise BenchError(f"{name}: no collective among two ranks or more was measured there")
    is_gloo = any(row.backend == "gloo" and row.status == "ok" for row in rows)
    return msgspec.structs.replace(
        known,
        name=f"{name}, as measured" + (f", and {known.name}" if known.between else ""),
        curves=curves,
        half_of_all_reduce=not is_gloo,
    )


def with_contention(profile: Profile) -> Profile:
    """A profile that knows nothing of overlap, with what is published of accelerators."""
    if profile.contention is not None or profile.case.device == "cpu":
        return profile
    known = catalogue().contention
    contention = Contention(stolen_s_per_byte=known.stolen_s_per_byte, source=known.source)
    return msgspec.structs.replace(profile, contention=contention)


def sizes_of(site: Site, asked: Sequence[int] | None) -> list[Places]:
    """Numbers of devices, and where they are: hosts as large as the site's, one after the other.

    Raises:
        BenchError: more than one host would be needed, and nothing is known of links between hosts.
    """
    per_host = site.places.per_host
    if asked is None:
        most = MOST_DEVICES if site.between is not None else per_host
        asked = [2**power for power in range(most.bit_length()) if 2**power <= most]
        asked = [n for n in asked if n <= per_host or n % per_host == 0]
    if not asked or min(asked) < 1:
        raise BenchError("--world-sizes: there must be at least one device")
    places = [places_of(number, per_host) for number in sorted(set(asked))]
    if site.between is None and places[-1].hosts > 1:
        raise BenchError(
            f"{places[-1].ranks} devices are on {places[-1].hosts} hosts of {per_host}: say how "
            "they are linked, as in '... at 100 Gbit/s'"
        )
    return places
