"""Profiles, networks and studies of which the truth is known."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from bench.plan.case import Case
from bench.predict.curve import Curve, Timed
from bench.predict.network import Level, Network, Places
from bench.predict.scaling import Wanted, predict
from bench.records.collectives import Collective
from bench.records.profile import Contention, Gradient, Profile, Unit
from bench.records.record import Record, Throughput, Timing
from tests.fakes import make_case

MIB = 2**20


def single(**changes: Any) -> Case:
    told: dict[str, Any] = {
        "strategy": "single",
        "options": {},
        "label": "single",
        "backend": None,
        "world_size": 1,
        "per_device_batch": 8,
        "global_batch": 8,
    }
    return make_case(**(told | changes))


def profile(gradients: int = 4, size: int = MIB, **changes: Any) -> Profile:
    """Forward 1 s, backward 2 s with gradients at equal times, optimizer 0.5 s."""
    made = Profile(
        case=single(),
        source="measured",
        unit="sample",
        forward_s=1.0,
        backward_s=2.0,
        optimizer_s=0.5,
        gradients=[
            Gradient(name=str(number), bytes=size, ready_s=2.0 * (number + 1) / gradients)
            for number in range(gradients)
        ],
        units=[Unit(bytes=gradients * size // 2, forward_s=0.5, backward_s=1.0) for _ in range(2)],
    )
    return msgspec.structs.replace(made, **changes)


def network(bytes_per_s: float = MIB, latency_s: float = 0.0, **changes: Any) -> Network:
    """On two ranks an all-reduce puts as many bytes on the bus as it has: size / rate."""
    level = Level(bus_bytes_per_s=bytes_per_s, latency_s=latency_s)
    return Network(name="made", within=level, **changes)


TWO = Places(hosts=1, per_host=2)


def wanted(strategy: str = "ddp", places: Places = TWO, **changes: Any) -> Wanted:
    return Wanted(strategy=strategy, places=places, **changes)


def flat(ranks: int, seconds: float) -> Timed:
    """A collective of 1 GiB that takes so long, and smaller ones in proportion."""
    sizes = (MIB, 1024 * MIB)
    curve = Curve(bytes=sizes, seconds=(seconds / 1024, seconds))
    del ranks
    return Timed(alone=curve, in_row=curve)


def row(size: int, seconds: float, **changes: Any) -> Collective:
    told: dict[str, Any] = {
        "run_id": "made",
        "op": "all_reduce",
        "backend": "gloo",
        "device": "cpu",
        "dtype": "fp32",
        "world_size": 2,
        "bytes": size,
        "status": "ok",
        "median_s": seconds,
        "back_to_back_s": seconds,
    }
    return Collective(**(told | changes))


def record(case: Case, launch: int, step_s: float) -> Record:
    return Record(
        run_id="made",
        launch=launch,
        pass_="timing",
        case=case,
        status="ok",
        timing=Timing(
            launch_s=None,
            setup_s=[0.0],
            first_step_s=[None],
            warmup_step_s=[[]],
            step_s=[[step_s]],
            block_steps=1,
            window_s=[step_s],
            stopped_by="min_steps",
        ),
        throughput=Throughput(
            samples_per_s=case.global_batch / step_s, unit="sample", units_per_sample=1
        ),
        environment="made",
    )


def launches_of(
    truth: Profile, over: Network, asked: Wanted, *, count: int, noise: float, seed: int
) -> list[Record]:
    """Launches of a case as the timeline has it, each off by normal noise."""
    drawn = random.Random(seed)
    found = predict(truth, over, asked)
    return [
        record(found.case, launch, found.step_s * (1 + drawn.gauss(0.0, noise)))
        for launch in range(count)
    ]


def slowed(made: Profile, **changes: Any) -> Profile:
    return msgspec.structs.replace(made, contention=Contention(source="made", **changes))
