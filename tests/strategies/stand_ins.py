"""A workload that overflows on one rank alone, and a strategy that says what it was started with.

Named in suites like a user's own: ``tests.strategies.stand_ins:NAME``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn

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


class SpikyOptions(Options, frozen=True, kw_only=True):
    """Settings of ``SPIKY``."""

    everywhere: bool = True
    """Whether no gradient is finite, or a single element of one is not, which one shard has."""


class Spiky(nn.Module):
    """Features (N, 4 + 8) -> (N, 2): what two layers make of the first, and a sum of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        self.weights = nn.Parameter(torch.zeros(8))
        """Whose gradient is the features' mean."""

    def forward(self, features: Tensor) -> Tensor:
        """See above."""
        added = (features[:, 4:] * self.weights).sum(dim=1, keepdim=True)
        return torch.cat([self.layers(features[:, :4]), added], dim=1)


def _spiky_loss(output: Tensor, batch: Batch) -> Tensor:
    del batch
    output = output.float()
    return (0.01 * output[:, 0]).square().mean() + output[:, 1].mean()


def _build_spiky(options: SpikyOptions, build: Build) -> Problem:
    torch.manual_seed(build.seed)

    def batches(shard: int | None, shards: int) -> Iterator[Batch]:
        count = build.per_device_batch * (shards if shard is None else 1)
        step = 0
        while True:
            inputs = torch.zeros((count, 12), dtype=build.dtype)
            inputs[:, :4] = 1.0 + step % PERIOD
            inputs[0, :4] += shard or 0
            if has_spike(step) and shard in {None, shards - 1}:
                if options.everywhere:
                    inputs[-1, 0] = torch.inf
                else:
                    inputs[-1, 4] = 1e37  # finite, but not times the loss's scale
            yield Batch((inputs,), torch.zeros(count))
            step += 1

    return Problem(
        model=Spiky().to(build.dtype),
        make_optimizer=optimizer_factory(
            build.optimizer, lr=0.001, kernels=build.optimizer_kernels
        ),
        loss=_spiky_loss,
        batches=batches,
        shard_units=lambda model: [model.get_submodule("layers")],
    )


SPIKY = Workload(
    name="spiky",
    summary="one rank's third batch of four is infinite",
    options=SpikyOptions,
    presets={"tiny": Preset(options=SpikyOptions(), per_device_batch=2, summary="all there is")},
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
