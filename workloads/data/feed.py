"""The batches of one process from a loader: epoch after epoch, on the device.

``torch.utils.data.DataLoader`` and ``DistributedSampler`` do the work; what is here is what people
forget around them. The sampler is told each epoch, so that the order changes. The random numbers
of workers, and of a rank that loads by itself, are the rank's own: the model is made from a seed
that all ranks share, and so crops and flips would be the same on all of them. Batches that are not
full are left out, on all ranks alike.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from workloads.base import Batch, Images, Samples, shard_seed
from workloads.data.base import Asked, LoaderOptions, SampledOptions, Source
from workloads.data.epoch import Epoch, of_sampler, of_stream
from workloads.data.stream import Stream

EnterWorker = Callable[[int, int], None]
"""(process id of the rank, number of the worker): the first thing that a worker calls."""


def do_nothing(rank: int, worker: int) -> None:
    """For workers that need nothing of the kind."""
    del rank, worker


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of the samples that is one process's."""

    rank: int
    ranks: int
    batch: int
    """Samples of this process in a micro-step."""


def epoch_of(source: Source, options: LoaderOptions, count: int, share: Share) -> Epoch:
    """What becomes of the samples of an epoch."""
    if source.is_stream:
        return of_stream(count, ranks=share.ranks, workers=options.workers, batch=share.batch)
    assert isinstance(options, SampledOptions), "a source whose samples have numbers deals them"
    return of_sampler(count, ranks=share.ranks, batch=share.batch, drop_last=options.drop_last)


class Numbered(Dataset[Batch]):
    """Samples as a data set of torch, with their number."""

    def __init__(self, samples: Samples, count: int) -> None:
        self._samples = samples
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Batch:
        return self._samples[index]


class Feed:
    """Endless batches of one process. Iterating waits for a loader, and never for the device.

    Args:
        loader: of full batches on the host.
        begin_epoch: is told each epoch's number before it begins.
        place: puts a batch onto the device.
        epoch: what becomes of an epoch's samples.
    """

    def __init__(
        self,
        loader: DataLoader[Batch],
        begin_epoch: Callable[[int], None],
        place: Callable[[Batch], Batch],
        epoch: Epoch,
    ) -> None:
        self._loader: DataLoader[Batch] | None = loader
        self._begin_epoch = begin_epoch
        self._place = place
        self._batches: Iterator[Batch] = iter(())
        self.epoch = epoch
        self.begun = 0
        """Epochs that have begun."""
        self.batch_bytes: int | None = None
        """Of a batch on the host; None before the first."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches, None)
        while batch is None:
            batch = next(self._next_epoch(), None)
        if self.batch_bytes is None:
            self.batch_bytes = sum(one.nbytes for one in (*batch.inputs, batch.targets))
        return self._place(batch)

    def _next_epoch(self) -> Iterator[Batch]:
        assert self._loader is not None, "a feed that was closed gives no more"
        self._begin_epoch(self.begun)
        self.begun += 1
        self._batches = iter(self._loader)
        return self._batches

    def workers(self) -> list[int]:
        """Process ids of the workers that are alive."""
        return [one.pid for one in multiprocessing.active_children() if one.pid is not None]

    def close(self) -> None:
        """End the workers. The loader ends them with its iterator."""
        self._batches = iter(())
        self._loader = None


def open_feed(
    source: Source,
    options: LoaderOptions,
    asked: Asked,
    share: Share,
    *,
    device: torch.device,
    dtype: torch.dtype,
    enter_worker: EnterWorker = do_nothing,
) -> Feed:
    """A feed of a source for one process.

    Args:
        source: where samples come from.
        options: of it.
        asked: what for.
        share: of this process.
        device: that batches go to.
        dtype: of numbers with a point there.
        enter_worker: the first thing that a worker calls.

    Raises:
        ValueError: an epoch has not one full batch for every rank.
    """
    assert source.open is not None, "batches made on the device need no feed"
    opened = source.open(options, asked)
    epoch = epoch_of(source, options, opened.count, share)
    if epoch.trained == 0:
        raise ValueError(too_few(opened.count, options, share))
    arguments = _arguments(options, shard_seed(asked.seed, share.rank), enter_worker)
    begin_epoch: Callable[[int], None] = _ignore
    if source.is_stream:
        dataset: Dataset[Batch] = Stream(
            opened.samples, opened.count, rank=share.rank, ranks=share.ranks, batch=share.batch
        )
    else:
        assert isinstance(options, SampledOptions)
        dataset = Numbered(opened.samples, opened.count)
        sampler: DistributedSampler[Batch] = DistributedSampler(
            dataset,
            num_replicas=share.ranks,
            rank=share.rank,
            shuffle=options.shuffle,
            seed=asked.seed,
            drop_last=options.drop_last,
        )
        arguments["sampler"] = sampler
        begin_epoch = sampler.set_epoch
    loader = DataLoader(dataset, batch_size=share.batch, drop_last=True, **arguments)
    if options.workers == 0:
        _seed_this_process(shard_seed(asked.seed, share.rank))
    samples = asked.facts.samples
    is_last = isinstance(samples, Images) and samples.channels_last
    place = functools.partial(
        placed,
        device=device,
        dtype=dtype,
        layout=torch.channels_last if is_last else torch.preserve_format,
        non_blocking=options.non_blocking,
    )
    return Feed(loader, begin_epoch, place, epoch)


def too_few(count: int, options: LoaderOptions, share: Share) -> str:
    """What to say where an epoch has not one full batch for every rank."""
    workers = f" and {options.workers} workers each" if options.workers > 1 else ""
    return (
        f"{count:,} samples are not one batch of {share.batch} for each of {share.ranks} "
        f"processes{workers}: give more samples, a smaller batch, or fewer workers"
    )


def _ignore(epoch: int) -> None:
    """A stream comes in the same order every time."""
    del epoch


def _arguments(options: LoaderOptions, seed: int, enter_worker: EnterWorker) -> dict[str, Any]:
    """Of the loader; torch refuses some of them where there are no workers."""
    arguments: dict[str, Any] = {
        "num_workers": options.workers,
        "pin_memory": options.pin_memory,
        "generator": torch.Generator().manual_seed(seed),
    }
    if options.workers > 0:
        arguments |= {
            "prefetch_factor": options.prefetch_factor,
            "persistent_workers": options.persistent_workers,
            "multiprocessing_context": options.multiprocessing_context,
            "worker_init_fn": functools.partial(enter_worker, os.getpid()),
        }
    return arguments


def _seed_this_process(seed: int) -> None:
    """Draw from here on what no other rank draws."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def placed(
    batch: Batch,
    *,
    device: torch.device,
    dtype: torch.dtype,
    layout: torch.memory_format,
    non_blocking: bool,
) -> Batch:
    """A batch on the device, as the workload's own: copied first, converted there."""

    def put(one: Tensor) -> Tensor:
        there = one.to(device, non_blocking=non_blocking)
        if there.is_floating_point():
            there = there.to(dtype)
        return there.to(memory_format=layout) if there.dim() == 4 else there

    return Batch(tuple(put(one) for one in batch.inputs), put(batch.targets))
