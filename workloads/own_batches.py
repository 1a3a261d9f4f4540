"""Batches of a workload from a plain function: drawn with a seed, or taken from a data set."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from workloads.base import Batch, Build, shard_seed

DISTINCT = 4
"""Batches of a shard before they come again."""


def pool(source: Any, build: Build, shard: int, shards: int) -> list[Batch]:
    """The batches of one shard; of a data set, shards have no sample in common.

    Raises:
        TypeError: what is drawn is no pair of inputs and targets.
        ValueError: it has not as many samples as were asked for.
    """
    return [batch_at(source, build, shard, shards, number) for number in range(DISTINCT)]


def batch_at(source: Any, build: Build, shard: int, shards: int, number: int) -> Batch:
    """One batch of a shard, the same for the same number; raises what ``pool`` does."""
    count = build.per_device_batch
    begin = (number * shards + shard) * count
    seed = shard_seed(shard_seed(build.seed, shard), number)
    drawn = draw(source, count, range(begin, begin + count), seed=seed)
    batch = batch_of(drawn, build.device, build.dtype)
    require_count(batch, count)
    return batch


def require_count(batch: Batch, count: int) -> None:
    """Whether a batch has as many samples as were asked for.

    Raises:
        ValueError: it has not.
    """
    for tensor in (*batch.inputs, batch.targets):
        if tensor.dim() == 0 or len(tensor) != count:
            raise ValueError(
                f"a batch of {count} samples has a tensor of shape {tuple(tensor.shape)}: "
                "dimension 0 counts samples, in inputs and targets"
            )


def draw(source: Any, count: int, places: Sequence[int], *, seed: int) -> Any:
    """What makes up one batch, before it is moved.

    Args:
        source: draws so many samples, or is a data set.
        count: of samples.
        places: of them in a data set, which begins anew at its end.
        seed: for what is drawn.

    Raises:
        ValueError: the data set is empty.
    """
    if is_dataset(source):
        length = len(source)
        if length == 0:
            raise ValueError("the data set is empty")
        return default_collate([source[place % length] for place in places])
    with _seeded(seed):
        return source(count)


def is_dataset(batches: Any) -> bool:
    """Whether samples are taken from it by their place, and not drawn."""
    return hasattr(batches, "__getitem__") and hasattr(batches, "__len__")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from here on as from a seed, by torch, NumPy or ``random``; then as before."""
    numbers, state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numbers)
        random.setstate(state)


def batch_of(drawn: Any, device: torch.device, dtype: torch.dtype) -> Batch:
    """Tensors on a device, those of numbers with a point in the type asked for.

    Raises:
        TypeError: it is no pair of inputs and targets.
    """
    if not isinstance(drawn, tuple | list) or len(drawn) != 2:
        what = f"{len(drawn)} things" if isinstance(drawn, tuple | list) else type(drawn).__name__
        raise TypeError(f"batches must give (inputs, targets), not {what}")
    inputs, targets = drawn
    given = [inputs] if isinstance(inputs, Tensor) else inputs
    if not isinstance(given, tuple | list) or not all(
        isinstance(one, Tensor) for one in itertools.chain(given, [targets])
    ):
        raise TypeError(
            "batches must give (inputs, targets): inputs a tensor or a tuple of tensors, the "
            "arguments of the model's forward, and targets a tensor"
        )
    return Batch(tuple(_moved(given, device, dtype)), next(_moved([targets], device, dtype)))


def _moved(tensors: Iterable[Tensor], device: torch.device, dtype: torch.dtype) -> Iterator[Tensor]:
    for one in tensors:
        yield one.to(device, dtype if one.is_floating_point() else one.dtype)


class OwnSamples:
    """See ``workloads.base.Samples``: those of a function, or of a data set.

    Args:
        source: draws so many samples, or is a data set.
        seed: for what is drawn.
    """

    def __init__(self, source: Any, seed: int) -> None:
        self._source = source
        self._seed = seed

    def __getitem__(self, index: int) -> Batch:
        """See ``Samples``; a function draws it alone."""
        drawn = draw(self._source, 1, [index], seed=shard_seed(self._seed, index))
        batch = batch_of(drawn, torch.device("cpu"), torch.float32)
        return Batch(tuple(one[0] for one in batch.inputs), batch.targets[0])
