"""Many cases predicted: strategies times numbers of devices; and the best of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import yaml

from bench.errors import BenchError
from bench.plan.case import Scaling
from bench.plan.registry import find_strategy
from bench.predict.network import Level, Network, Places
from bench.predict.scaling import Prediction, Wanted, predict
from bench.predict.schedules import SCHEDULES
from bench.records.profile import Profile
from bench.records.scaling import Moment, Predicted

Error = tuple[float, float]
"""By how much less, and more, throughput may be than predicted, as shares of it."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy with its settings, as asked for."""

    strategy: str
    options: dict[str, Any]
    """All of them, defaults included."""
    label: str


def ways_of(text: str) -> list[Way]:
    """Read ``ddp,ddp(bucket_cap_mb=100),fsdp``.

    Raises:
        BenchError: a strategy that there is no schedule of, or a setting that it does not have.
    """
    words = [word.strip() for word in re.split(r",(?![^(]*\))", text) if word.strip()]
    if not words:
        raise BenchError("--strategies: names nothing; write ddp,fsdp")
    return [_way(word) for word in dict.fromkeys(words)]


def _way(text: str) -> Way:
    match = re.fullmatch(r"([\w.:]+)\s*(?:\((.*)\))?", text)
    if match is None:
        raise BenchError(f"--strategies: {text!r} cannot be read; write ddp(bucket_cap_mb=100)")
    strategy = find_strategy(match[1])
    if strategy.name not in SCHEDULES:
        known = ", ".join(sorted(SCHEDULES))
        raise BenchError(
            f"--strategies: no schedule of {strategy.name!r} is known; there are {known}"
        )
    given: dict[str, Any] = {}
    for part in filter(None, re.split(r",(?![^\[]*\])", match[2] or "")):
        name, is_set, value = part.partition("=")
        if not is_set:
            raise BenchError(
                f"--strategies: {text!r}: {part.strip()!r} sets nothing; write NAME=VALUE"
            )
        given[name.strip()] = yaml.safe_load(value)
    try:
        options = msgspec.convert(given, strategy.options)
    except msgspec.ValidationError as error:
        raise BenchError(f"--strategies: {text!r}: {error}") from error
    return Way(strategy=strategy.name, options=msgspec.to_builtins(options), label=text)


def places_of(devices: int, per_host: int) -> Places:
    """Where so many devices are, hosts filled one after the other.

    Raises:
        BenchError: the last host would not be full.
    """
    if devices <= per_host:
        return Places(hosts=1, per_host=devices)
    if devices % per_host:
        raise BenchError(f"{devices} devices do not fill hosts of {per_host}")
    return Places(hosts=devices // per_host, per_host=per_host)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """All that is the same for the cases of a sweep."""

    profile: Profile
    network: Network
    backend: str = "nccl"
    scaling: Scaling = "weak"
    accumulation_steps: int = 1
    errors: Mapping[str, Error] = {}
    """By strategy, and under the empty name that of all others; empty where no error is known."""
    basis: str = ""
    """What it rests on, for people."""


def ask(question: Question, way: Way, places: Places) -> Predicted:
    """One case.

    Raises:
        BenchError: it has no model.
    """
    if way.strategy == "dp" and places.hosts > 1:
        raise BenchError("dp is one process, which drives the devices of one host")
    wanted = Wanted(
        strategy=way.strategy,
        options=way.options,
        label=way.label,
        places=places,
        scaling=question.scaling,
        accumulation_steps=question.accumulation_steps,
        backend=question.backend,
    )
    error = question.errors.get(way.strategy) or question.errors.get("")
    return as_predicted(predict(question.profile, question.network, wanted), error)


def sweep(question: Question, ways: Sequence[Way], sizes: Sequence[Places]) -> list[Predicted]:
    """Every way on every number of devices that it can have."""
    found = []
    for way in ways:
        for places in sizes:
            if way.strategy == "single" and places.ranks > 1:
                continue
            if way.strategy == "dp" and places.hosts > 1:
                continue
            found.append(ask(question, way, places))
    return found


def as_predicted(one: Prediction, error: Error | None) -> Predicted:
    """What is kept of a prediction."""
    return Predicted(
        case=one.case,
        hosts=one.places.hosts,
        step_s=one.step_s,
        single_step_s=one.single_step_s,
        samples_per_s=one.samples_per_s,
        speedup=one.speedup,
        computed_s=one.computation_s,
        communicated_s=one.communication_s,
        exposed_s=one.exposed_s,
        no_overlap_s=one.no_overlap_s,
        full_overlap_s=one.full_overlap_s,
        error_low=None if error is None else error[0],
        error_high=None if error is None else error[1],
        moments=[
            Moment(
                name=span.task.name,
                kind=span.task.kind,
                stream=span.task.stream,
                begin_s=span.begin_s,
                end_s=span.end_s,
                bytes=span.task.bytes,
            )
            for span in one.spans
            if span.end_s > span.begin_s
        ],
    )


CAPS_MB = (None, 1, 4, 10, 25, 50, 100, 200)
"""Of buckets, that are tried; None leaves torch its own rule."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The best of several ways on given devices."""

    best: Predicted
    ranked: list[Predicted]
    """All, from the quickest to the slowest."""
    tied: list[str]
    """Labels of those whose interval reaches the best one's figure: no difference can be told."""
    flips_at_bytes_per_s: float | None
    """Rate of the links at which another strategy becomes the best, nearest to theirs; None where
    none does from a thousandth to a thousand times theirs."""
    flips_to: str | None


def choose(question: Question, places: Places, strategies: Sequence[str]) -> Choice:
    """The quickest way, over strategies and caps of buckets.

    Args:
        question: with the network that the devices have.
        places: of the devices.
        strategies: that are compared. Whether each fits into memory is another question.

    Raises:
        BenchError: none of them has a model.
    """
    ranked = _ranked(question, places, strategies)
    best = ranked[0]
    least = best.samples_per_s * (1 - (best.error_low or 0.0))
    tied = [
        one.case.label
        for one in ranked[1:]
        if one.samples_per_s * (1 + (one.error_high or 0.0)) >= least
    ]
    flip = _flip(question, places, strategies, best.case.strategy)
    return Choice(
        best=best,
        ranked=ranked,
        tied=tied,
        flips_at_bytes_per_s=flip and flip[0],
        flips_to=flip and flip[1],
    )


def _ranked(question: Question, places: Places, strategies: Sequence[str]) -> list[Predicted]:
    candidates = [way for name in strategies for way in _candidates(name)]
    found = sweep(question, candidates, [places])
    if not found:
        raise BenchError("no strategy is left to choose from")
    return sorted(found, key=lambda one: -one.samples_per_s)


def _candidates(strategy: str) -> list[Way]:
    plain = _way(strategy)
    if strategy != "ddp":
        return [plain]
    return [plain if cap is None else _way(f"ddp(bucket_cap_mb={cap})") for cap in CAPS_MB]


FACTORS = sorted(
    (10 ** (power / 10) for power in range(-30, 31)), key=lambda one: abs(math.log(one))
)
"""Of the links' own rate: a thousandth to a thousand times, ten to a decade."""


def _flip(
    question: Question, places: Places, strategies: Sequence[str], best: str
) -> tuple[float, str] | None:
    """(rate of the links that decide, the strategy that is best there), nearest to theirs."""
    rate = rate_of(question.network, places)
    if rate is None:
        return None
    for factor in FACTORS:
        other = msgspec.structs.replace(question, network=faster(question.network, places, factor))
        first = _ranked(other, places, strategies)[0]
        if first.case.strategy != best:
            return factor * rate, first.case.label
    return None


def rate_of(network: Network, places: Places) -> float | None:
    """Of the links that decide: those between hosts, where there are several."""
    level = network.between if places.hosts > 1 else network.within
    return None if level is None else level.bus_bytes_per_s


def faster(network: Network, places: Places, factor: float) -> Network:
    """The same network with other links: those between hosts, where there are several.

    Their latencies stay.
    """

    def scaled(level: Level | None) -> Level | None:
        if level is None:
            return None
        return msgspec.structs.replace(level, bus_bytes_per_s=factor * level.bus_bytes_per_s)

    if places.hosts > 1:
        return msgspec.structs.replace(network, between=scaled(network.between))
    # A curve is of one rate: at another, latency and bandwidth say all that is known.
    return msgspec.structs.replace(network, within=scaled(network.within), curves={})
