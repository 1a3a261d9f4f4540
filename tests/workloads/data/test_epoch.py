"""What is counted is what torch's own sampler, and a stream, come to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DistributedSampler

from workloads.data.epoch import of_sampler, of_stream


def dealt(count: int, ranks: int, batch: int, *, drop_last: bool, epoch: int = 0) -> list[Any]:
    """Each rank's full batches of sample numbers."""
    found = []
    for rank in range(ranks):
        sampler: DistributedSampler[int] = DistributedSampler(
            range(count),  # type: ignore[arg-type] # has a length, which is all that is asked
            num_replicas=ranks,
            rank=rank,
            drop_last=drop_last,
        )
        sampler.set_epoch(epoch)
        found.append(list(BatchSampler(sampler, batch, drop_last=True)))
    return found


@pytest.mark.parametrize("count", [8, 9, 10, 11, 12, 13, 23])
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_is_what_the_sampler_deals(
    count: int, batch: int, ranks: int, drop_last: bool
) -> None:
    batches = dealt(count, ranks, batch, drop_last=drop_last)
    assert len({len(of_rank) for of_rank in batches}) == 1, "or the others would hang"
    numbers = [number for of_rank in batches for one in of_rank for number in one]
    found = of_sampler(count, ranks=ranks, batch=batch, drop_last=drop_last)
    assert found.trained == len(numbers)
    assert found.padded == sum(times - 1 for times in Counter(numbers).values())
    assert found.dropped == count - len(set(numbers))
    assert found.count == found.trained - found.padded + found.dropped


def test_the_next_epoch_has_another_order_and_the_same_samples() -> None:
    first, second = (dealt(12, 2, 3, drop_last=False, epoch=epoch) for epoch in (0, 1))
    assert first != second
    for epoch in (first, second):
        numbers = (number for of_rank in epoch for batch in of_rank for number in batch)
        assert sorted(numbers) == list(range(12))


def test_a_stream_gives_every_reader_as_many_batches() -> None:
    found = of_stream(103, ranks=2, workers=3, batch=4)  # 17 samples each: four batches
    assert (found.trained, found.dropped, found.padded) == (6 * 4 * 4, 7, 0)
    assert of_stream(103, ranks=2, workers=0, batch=4) == of_stream(
        103, ranks=2, workers=1, batch=4
    )
