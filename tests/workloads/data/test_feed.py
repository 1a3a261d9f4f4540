"""Faults of loading that no one sees: each would be one, were it not for what is tested here."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from bench.run.input import enter_worker
from workloads.base import Batch, Facts, Images
from workloads.data import host, stream
from workloads.data.base import Asked, LoaderOptions, Opened, SampledOptions, Source, resolved
from workloads.data.feed import Feed, Share, open_feed, placed, too_few
from workloads.data.host import HostOptions
from workloads.data.stream import Stream, StreamOptions

CPU = torch.device("cpu")


class Numbers:
    """Samples that are their own number, and what is drawn beside them."""

    def __getitem__(self, index: int) -> Batch:
        drawn = [float(torch.rand(())), float(np.random.rand()), random.random()]
        return Batch((torch.tensor([float(index), *drawn]),), torch.tensor(index))


@contextmanager
def feed_of(
    options: LoaderOptions, *, rank: int = 0, ranks: int = 2, batch: int = 2
) -> Iterator[Feed]:
    source = stream.SOURCES[0] if isinstance(options, StreamOptions) else host.SOURCES[0]
    asked = Asked(
        facts=Facts(unit="sample", sample_bytes=24),
        own=Numbers(),
        at_once=ranks * batch,
        seed=0,
        place=None,
        scratch=Path("nowhere"),
    )
    share = Share(rank=rank, ranks=ranks, batch=batch)
    enter = functools.partial(enter_worker, Path("nowhere"))
    feed = open_feed(
        source, options, asked, share, device=CPU, dtype=torch.float32, enter_worker=enter
    )
    try:
        yield feed
    finally:
        feed.close()
    assert not feed.workers()


def epoch_of(feed: Feed) -> list[Batch]:
    share = feed.epoch.trained
    first = next(feed)
    begun, found = feed.begun, [first]
    while len(found) * len(first.targets) * 2 < share:
        found.append(next(feed))
    assert feed.begun == begun
    return found


def numbers(batches: list[Batch]) -> list[int]:
    return [int(number) for batch in batches for number in batch.targets]


@pytest.mark.parametrize(
    "options",
    [
        HostOptions(samples=21),
        HostOptions(samples=21, workers=2, persistent_workers=True),
        StreamOptions(samples=21),
        StreamOptions(samples=21, workers=2),
    ],
    ids=str,
)
def test_ranks_see_different_samples_and_an_epoch_covers_the_data(options: LoaderOptions) -> None:
    seen: list[list[list[int]]] = []
    for rank in range(2):
        with feed_of(options, rank=rank) as feed:
            seen.append([numbers(epoch_of(feed)) for _ in range(2)])
            assert feed.begun == 2
    for epoch in range(2):
        ours, others = seen[0][epoch], seen[1][epoch]
        assert len(ours) == len(others)
        all_seen = [*ours, *others]
        assert len(all_seen) == feed.epoch.trained
        assert len(set(all_seen)) == feed.epoch.count - feed.epoch.dropped
    is_shuffled = isinstance(options, SampledOptions)
    assert (seen[0][0] != seen[0][1]) == is_shuffled, "an epoch has an order of its own"


def test_the_same_seed_deals_the_same_samples_whoever_loads_them() -> None:
    dealt = []
    for options in (HostOptions(samples=16), HostOptions(samples=16, workers=2)):
        with feed_of(options) as feed:
            dealt.append(numbers(epoch_of(feed)))
    assert dealt[0] == dealt[1]


def test_a_stream_that_does_not_ask_for_its_worker_comes_once_for_each() -> None:
    class Naive(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    found = [int(n) for batch in DataLoader(Naive(), batch_size=2, num_workers=2) for n in batch]
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3]
    ours = Stream(Numbers(), 4, rank=0, ranks=1, batch=2)
    loaded = list(DataLoader(ours, batch_size=2, num_workers=2))
    assert sorted(numbers(loaded)) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_two_ranks_or_workers_draw_the_same(workers: int) -> None:
    drawn: list[torch.Tensor] = []
    for rank in range(2):
        torch.manual_seed(0)  # as the model's parameters are drawn, on every rank
        np.random.seed(0)
        random.seed(0)
        with feed_of(HostOptions(samples=16, workers=workers), rank=rank) as feed:
            drawn += [batch.inputs[0][:, 1:] for batch in epoch_of(feed)]
    for kind in torch.cat(drawn).T:  # torch's, NumPy's and Python's
        assert len(set(kind.tolist())) == len(kind)


def test_a_batch_that_is_not_full_is_on_no_rank() -> None:
    for rank in range(2):
        with feed_of(HostOptions(samples=7), rank=rank, batch=3) as feed:
            sizes = {len(next(feed).targets) for _ in range(5)}
            assert sizes == {3}
            assert (feed.epoch.trained, feed.epoch.dropped, feed.begun) == (6, 1, 5)


def test_too_few_samples_are_told_with_a_remedy() -> None:
    options = HostOptions(samples=2)
    with pytest.raises(ValueError, match="2 samples are not one batch of 2 for each of 2"):
        feed_of(options).__enter__()
    message = too_few(3, StreamOptions(workers=2), Share(rank=0, ranks=2, batch=2))
    assert "and 2 workers each: give more samples, a smaller batch, or fewer workers" in message


def test_without_workers_their_options_mean_nothing() -> None:
    odd = HostOptions(prefetch_factor=7, persistent_workers=True, multiprocessing_context="spawn")
    assert resolved(odd) == HostOptions()
    busy = HostOptions(workers=1, prefetch_factor=7)
    assert resolved(busy) is busy


def test_a_batch_is_converted_where_it_is_trained_on() -> None:
    images = torch.zeros(2, 3, 4, 4)
    found = placed(
        Batch((images,), torch.tensor([1, 2])),
        device=CPU,
        dtype=torch.bfloat16,
        layout=torch.channels_last,
        non_blocking=True,
    )
    assert found.inputs[0].dtype is torch.bfloat16
    assert found.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert found.targets.dtype is torch.int64


def test_pictures_have_the_layout_that_the_workload_asks_for() -> None:
    def pictures(options: object, asked: Asked) -> Opened:
        del options, asked
        picture = Batch((torch.zeros(3, 4, 4),), torch.tensor(0))
        return Opened(samples=dict.fromkeys(range(8), picture), count=8)

    source = Source(name="made", summary="", options=HostOptions, open=pictures)
    asked = Asked(
        facts=Facts(unit="image", samples=Images(size=4, classes=2, channels_last=True)),
        own=None,
        at_once=2,
        seed=0,
        place=None,
        scratch=Path("nowhere"),
    )
    share = Share(rank=0, ranks=1, batch=2)
    feed = open_feed(source, HostOptions(), asked, share, device=CPU, dtype=torch.float32)
    assert next(feed).inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert feed.batch_bytes == 2 * (3 * 4 * 4 * 4 + 8)


def _load(sender: Connection) -> None:
    with feed_of(HostOptions(samples=1000, workers=2)) as feed:
        next(feed)
        time.sleep(1.0)  # all that is to be had beforehand is there, and the workers wait
        sender.send(feed.workers())
        time.sleep(60)


def test_workers_die_with_their_rank_and_leave_no_shared_memory() -> None:
    before = set(Path("/dev/shm").glob("torch_*"))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    rank = multiprocessing.get_context("fork").Process(target=_load, args=(sender,))
    rank.start()
    workers = [psutil.Process(pid) for pid in receiver.recv()]
    assert len(workers) == 2
    assert rank.pid is not None
    os.kill(rank.pid, signal.SIGKILL)
    rank.join()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    ours = set(Path("/dev/shm").glob("torch_*")) - before
    assert not [one for one in ours if any(f"_{gone.pid}_" in one.name for gone in workers)]


def test_torch_is_told_what_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, object]] = []

    def loader(*_: object, **arguments: object) -> DataLoader[Batch]:
        told.append(arguments)
        return DataLoader(Numbers())  # type: ignore[arg-type] # which is not asked for any

    monkeypatch.setattr("workloads.data.feed.DataLoader", loader)
    busy = {
        "pin_memory": True,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "multiprocessing_context": "forkserver",
    }
    for options in (HostOptions(), HostOptions(workers=2, **busy)):  # type: ignore[arg-type]
        with feed_of(options):
            pass
    plain, given = told
    assert (plain["num_workers"], plain["pin_memory"], plain["drop_last"]) == (0, False, True)
    assert "prefetch_factor" not in plain, "torch refuses it without workers"
    assert given["num_workers"] == 2
    assert {name: given[name] for name in busy} == busy
