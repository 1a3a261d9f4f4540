"""A workload that overflows on one rank alone, and a strategy that says what it was started with.

Named in suites like a user's own: ``tests.strategies.stand_ins:NAME``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import nn

from bench.strategies.base import Context, Session, Strategy, always
from bench.strategies.single import prepare as prepare_single
from workloads.base import (
    Batch,
    Build,
    Facts,
    Options,
    Preset,
    Problem,
    Workload,
    optimizer_factory,
)

PERIOD, SPIKE = 4, 2
"""Of every four batches of the last rank, the third has no finite gradient."""


def has_spike(step: int) -> bool:
    """Whether a step, counted from 0, has such a batch."""
    return step % PERIOD == SPIKE


def _build_spiky(options: Options, build: Build) -> Problem:
    del options
    torch.manual_seed(build.seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).to(build.dtype)

    def batches(shard: int | None, shards: int) -> Iterator[Batch]:
        count = build.per_device_batch * (shards if shard is None else 1)
        step = 0
        while True:
            inputs = torch.full((count, 4), 1.0 + step % PERIOD, dtype=build.dtype)
            inputs[0] += shard or 0
            if has_spike(step) and shard in {None, shards - 1}:
                inputs[-1] = torch.inf
            yield Batch((inputs,), torch.zeros(count))
            step += 1

    return Problem(
        model=model,
        make_optimizer=optimizer_factory(
            build.optimizer, lr=0.001, kernels=build.optimizer_kernels
        ),
        loss=lambda output, _: (0.01 * output.float()).square().mean(),
        batches=batches,
        shard_units=lambda model: list(model.children()),
    )


SPIKY = Workload(
    name="spiky",
    summary="one rank's third batch of four is infinite",
    options=Options,
    presets={"tiny": Preset(options=Options(), per_device_batch=2, summary="all there is")},
    optimizer="sgd",
    facts=lambda _: Facts(unit="sample"),
    build=_build_spiky,
)


def _prepare_telling(problem: Problem, context: Context) -> Session:
    level = (
        torch._C._distributed_c10d.get_debug_level().name
    )  # which torch reads when it is imported
    print(f"told: {os.environ.get('TORCH_DISTRIBUTED_DEBUG')}, read at import: {level}")  # noqa: T201
    return prepare_single(problem, context)


TELLING = Strategy(
    name="telling",
    summary="says in its log what its environment is",
    processes="per_device",
    max_world_size=1,
    communicates=False,
    reference=lambda _: "none",
    check=always,
    prepare=_prepare_telling,
)
