"""Small tasks that models can learn within a few steps, to see whether a strategy trains.

A sample is drawn from a seed and its number alone, so that as many devices as one likes, with as
many samples each, see the same samples in the same step as long as they are as many together.
Nothing is made before batches are drawn: most launches draw none, and their memory is measured.

Letters in shapes: C channels, H height, W width, L sequence, F features.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from workloads.base import Batch, Batches, Build, Task, concatenate, shard_seed

STRIPES = 16
"""Pixels from one stripe to the next."""
NOISE = 0.5
"""Standard deviation of what is added to a pattern, whose height is 1."""
SYMBOLS = 16
"""Tokens that sequences are made of, where a vocabulary has as many."""
JUMPS = 0.1
"""Share of tokens that do not follow from the one before."""
RULE_SEED = 20_777
"""Of what is the same for all samples, such as the hidden rule."""

Sample = Callable[[int, torch.Generator], tuple[tuple[Tensor, ...], Tensor]]
"""(number of the sample, its generator) -> inputs and target, without the samples' dimension."""


def endless(batch_at: Callable[[int, int, int], Batch]) -> Batches:
    """Batches that never come again.

    Args:
        batch_at: (shard, shards, number of the batch) -> that batch.
    """

    def batches(shard: int | None, shards: int) -> Iterator[Batch]:
        for number in itertools.count():
            if shard is None:
                yield concatenate([batch_at(one, shards, number) for one in range(shards)])
            else:
                yield batch_at(shard, shards, number)

    return batches


def drawn_one_by_one(sample: Sample, build: Build) -> Batches:
    """Batches of samples that are each drawn from their own number."""

    def batch_at(shard: int, shards: int, number: int) -> Batch:
        count = build.per_device_batch
        begin = (number * shards + shard) * count
        generator = torch.Generator(build.device)
        drawn = []
        for place in range(begin, begin + count):
            generator.manual_seed(shard_seed(build.seed, place))
            drawn.append(sample(place, generator))
        inputs = zip(*(inputs for inputs, _ in drawn), strict=True)
        return Batch(
            tuple(torch.stack(parts) for parts in inputs),
            torch.stack([target for _, target in drawn]),
        )

    return endless(batch_at)


def striped_images(build: Build, *, size: int, classes: int, layout: torch.memory_format) -> Task:
    """Images with upright or level stripes, in noise; two classes, by turns.

    By turns, so that batch norm sees both in every batch of two: of one class alone it would take
    away what tells it from the other.

    Args:
        build: names the device and the seed.
        size: height and width.
        classes: outputs of the model, of which two come up.
        layout: of the images.
    """
    assert classes >= 2, "a classifier tells two classes apart"

    def sample(place: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        noise_CHW = torch.randn(
            (3, size, size), generator=generator, device=build.device, dtype=build.dtype
        )
        wave_L = torch.sin(torch.arange(size, device=build.device) * (2 * math.pi / STRIPES))
        wave_HW = wave_L.expand(size, size) if place % 2 == 0 else wave_L.unsqueeze(1)
        image_CHW = wave_HW.to(build.dtype) + NOISE * noise_CHW
        return (image_CHW,), torch.tensor(place % 2, device=build.device)

    def laid_out(batch: Batch) -> Batch:
        return Batch(
            tuple(one.contiguous(memory_format=layout) for one in batch.inputs), batch.targets
        )

    plain = drawn_one_by_one(sample, build)
    return Task(
        what="images whose class shows as the direction of stripes, two classes by turns",
        batches=lambda shard, shards: map(laid_out, plain(shard, shards)),
        constant_loss=math.log(2),
    )


def counting_tokens(build: Build, *, vocabulary: int, length: int) -> Task:
    """Sequences that count upwards and begin anew, and now and then jump.

    Args:
        build: names the device and the seed.
        vocabulary: of the model.
        length: of a sequence.
    """
    symbols = min(SYMBOLS, vocabulary)

    def sample(place: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        del place
        device = build.device
        jumps_L = torch.rand(length + 1, generator=generator, device=device) < JUMPS
        jumps_L[0] = True
        drawn_L = torch.randint(symbols, (length + 1,), generator=generator, device=device)
        at_L = torch.arange(length + 1, device=device)
        last_L = torch.where(jumps_L, at_L, 0).cummax(0).values
        tokens_L = (drawn_L[last_L] + at_L - last_L) % symbols
        return (tokens_L[:-1].contiguous(),), tokens_L[1:].contiguous()

    return Task(
        what=f"sequences of {symbols} tokens that count upwards, and jump at one in ten",
        batches=drawn_one_by_one(sample, build),
        constant_loss=math.log(symbols),
        lr=1e-3,
    )


def hidden_rule(
    build: Build, *, features: int, others: Callable[[torch.Generator], tuple[Tensor, ...]]
) -> Task:
    """Samples that are clicked where a hidden weighted sum of their features is positive.

    Args:
        build: names the device and the seed.
        features: their number.
        others: draws the inputs behind the features, which say nothing of the click.
    """

    def sample(place: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        del place
        features_F = torch.randn(
            features, generator=generator, device=build.device, dtype=build.dtype
        )
        rule_F = torch.randn(features, generator=torch.Generator().manual_seed(RULE_SEED))
        click = (features_F @ rule_F.to(features_F) > 0).to(build.dtype)
        return (features_F, *others(generator)), click

    return Task(
        what="samples whose click follows from a hidden weighted sum of their features",
        batches=drawn_one_by_one(sample, build),
        constant_loss=math.log(2),
        lr=0.3,
    )
