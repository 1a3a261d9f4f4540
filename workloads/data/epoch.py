"""What becomes of the samples of an epoch: which are trained on, twice, or not at all."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.data.stream import batches_of_each


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Samples of one epoch, of all ranks together: ``count = trained - padded + dropped``."""

    count: int
    """There are."""
    trained: int
    """In full batches; those that come twice count twice."""
    padded: int
    """Come a second time, so that all ranks have as many."""
    dropped: int
    """Are left out, so that all batches are full, and all ranks have as many."""


def of_sampler(count: int, *, ranks: int, batch: int, drop_last: bool) -> Epoch:
    """An epoch that torch's ``DistributedSampler`` deals, without batches that are not full.

    The sampler repeats its first samples at its end, less than one for each rank: they go into the
    last sample of some ranks, and out again where that is in no full batch.

    Args:
        count: samples of the data set.
        ranks: that share it.
        batch: samples of one rank in a micro-step.
        drop_last: whether the sampler leaves samples out, where it would repeat some.

    >>> of_sampler(10, ranks=4, batch=3, drop_last=False)  # 12 dealt, 2 of them again
    Epoch(count=10, trained=12, padded=2, dropped=0)
    >>> of_sampler(10, ranks=4, batch=2, drop_last=False)  # each rank's third has no full batch
    Epoch(count=10, trained=8, padded=0, dropped=2)
    """
    each = count // ranks if drop_last else -(-count // ranks)
    in_batches = each // batch * batch
    padded = max(0, each * ranks - count) if in_batches == each else 0
    trained = in_batches * ranks
    return Epoch(count=count, trained=trained, padded=padded, dropped=count - trained + padded)


def of_stream(count: int, *, ranks: int, workers: int, batch: int) -> Epoch:
    """An epoch of a stream, which each worker of each rank reads a part of.

    >>> of_stream(100, ranks=2, workers=2, batch=8)  # 25 samples each: three batches
    Epoch(count=100, trained=96, padded=0, dropped=4)
    """
    readers = ranks * max(1, workers)
    trained = batches_of_each(count, readers, batch) * batch * readers
    return Epoch(count=count, trained=trained, padded=0, dropped=count - trained)
