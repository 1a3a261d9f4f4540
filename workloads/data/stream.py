"""Samples that can only be read in turn, as from a network or an archive: an IterableDataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from torch.utils.data import IterableDataset, get_worker_info

from workloads.base import Batch, Samples
from workloads.data.base import LoaderOptions, Source, needs_own, open_own, own_count


class StreamOptions(LoaderOptions, frozen=True, kw_only=True):
    """Settings of ``stream``."""

    samples: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of an epoch; null is 256 batches of each device, or the whole data set of a workload that has
    one. Helps to see what the end of an epoch costs, where it is small. Costs nothing: random
    samples are drawn when they are loaded."""


def batches_of_each(count: int, readers: int, batch: int) -> int:
    """Full batches that each reader has of a stream; all have as many, or ranks would hang.

    >>> batches_of_each(100, readers=4, batch=8)  # 25 samples each
    3
    """
    return count // readers // batch


class Stream(IterableDataset[Batch]):
    """The share of one rank; each of its workers takes its own part of that.

    Reader r of R takes the samples r, r + R, r + 2 R ..., so that no two have one in common.

    Args:
        samples: of the whole stream.
        count: of them.
        rank: this one.
        ranks: that read the stream.
        batch: samples of each batch of a rank.
    """

    def __init__(self, samples: Samples, count: int, *, rank: int, ranks: int, batch: int) -> None:
        self._samples = samples
        self._count = count
        self._rank = rank
        self._ranks = ranks
        self._batch = batch

    def __iter__(self) -> Iterator[Batch]:
        """The samples of this process."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        readers = self._ranks * workers
        each = batches_of_each(self._count, readers, self._batch) * self._batch
        first = self._rank * workers + worker
        yield from (self._samples[first + number * readers] for number in range(each))


SOURCES = (
    Source(
        name="stream",
        summary="the workload's own samples in turn, as an IterableDataset that ranks and workers "
        "split",
        options=StreamOptions,
        check=needs_own,
        count=own_count,
        open=open_own,
        of_workload=True,
        is_stream=True,
    ),
)
