"""What computation and communication lose to each other while both go on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from bench.measure.collectives import bus_factor
from bench.measure.device import Device
from bench.records.profile import Contention
from bench.run.loop import Engine, run_block
from bench.run.rank import Rank

BESIDE_STEPS = 8.0
"""Lengths of a step for which collectives go on beside it."""
ALONE_STEPS = 5
"""Without any beside them."""
MESSAGE_BYTES = 25 * 2**20
"""Of each: DDP's bucket."""


def measure_overlap(engine: Engine, rank: Rank, step_s: float) -> Contention | None:
    """Steps beside all-reduces that never end, and all-reduces beside steps that never end.

    All-reduces are put into a row, as many as go on for some steps, and steps are carried out until
    the row is over. What a step takes meanwhile is compared with a step alone, and the row with a
    row alone.
    """
    if rank.processes == 1:
        return None
    # In blocks of one step each, as those beside the row are: what a block costs is in both.
    alone = [run_block(engine, 1).elapsed_s for _ in range(ALONE_STEPS)]
    own_s = rank.slowest(statistics.median(alone))
    messages = [torch.zeros(MESSAGE_BYTES // 4, device=rank.device.torch_device) for _ in range(2)]
    alone_s = _row_s(messages, 3, rank)
    count = max(int(rank.slowest(BESIDE_STEPS * step_s) / alone_s), 2)
    alone_s = _row_s(messages, count, rank)
    rank.slowest(0.0)
    began = time.perf_counter()
    works = _row(messages, count)
    stepped = list(_beside(engine, rank.device, works[-1]))
    for work in works:
        work.wait()
    rank.device.synchronize()
    row_s = rank.slowest(time.perf_counter() - began)
    # The last of them outlasted the row.
    beside_s = rank.slowest(statistics.median(stepped[:-1] or stepped))
    on_bus = count * MESSAGE_BYTES * (bus_factor("all_reduce", rank.processes) or 0.0)
    rate = on_bus / row_s
    return Contention(
        source="measured",
        stolen_s_per_byte=max(1 - own_s / beside_s, 0.0) / rate,
        most_bus_bytes_per_s=rate if row_s > count * alone_s else None,
    )


def _row(messages: Sequence[Tensor], count: int) -> list[Any]:
    """So many all-reduces, begun one behind the other; over gloo two at a time, as DDP's are."""
    return [
        distributed.all_reduce(messages[number % len(messages)], async_op=True)
        for number in range(count)
    ]


def _row_s(messages: Sequence[Tensor], count: int, rank: Rank) -> float:
    """Seconds of each of some all-reduces in a row, nothing beside them; of the slowest process."""
    rank.slowest(0.0)
    began = time.perf_counter()
    for work in _row(messages, count):
        work.wait()
    rank.device.synchronize()
    return rank.slowest((time.perf_counter() - began) / count)


def _beside(engine: Engine, device: Device, last: Any) -> Iterator[float]:
    """Seconds of each step that is carried out until some work is done."""
    is_done = False
    while not is_done:
        yield run_block(engine, 1).elapsed_s
        device.synchronize()
        is_done = last.is_completed()
