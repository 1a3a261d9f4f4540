"""Under torchrun: all-reduces in a loop written by hand and ours, in turns within two processes.

Prints, on the first rank, the ratio of ours to the other for each size.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from bench.comm.rank import timed
from bench.measure.device import CpuDevice
from bench.measure.operations import make_call

SIZES = tuple(2**power for power in range(20, 28))
"""1 MiB to 128 MiB."""
PAIRS = 9
PATIENCE_S = 0.1


def slowest(value: float) -> float:
    agreed = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    return agreed.item()


def by_hand(tensor: torch.Tensor, count: int) -> float:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor)
    return slowest(time.perf_counter() - begin)


def ratio_of(size: int, rank: int, device: CpuDevice) -> float:
    tensor = torch.zeros(size // 4)
    call = make_call(
        "all_reduce", size=size, dtype="fp32", device=device.torch_device, rank=rank, ranks=2
    )
    call.clear()
    clock, aligned = device.clock(), torch.zeros(1)
    pilot_s = by_hand(tensor, 2) / 2
    count = max(2, min(20, int(PATIENCE_S / pilot_s)))
    ratios = []
    for pair in range(PAIRS):
        turn: list[tuple[str, Callable[[], float]]] = [
            ("hand", lambda: by_hand(tensor, count)),
            ("ours", lambda: slowest(timed(clock, device, aligned, call.run, count))),
        ]
        seconds = {name: run() for name, run in (turn if pair % 2 else reversed(turn))}
        ratios.append(seconds["ours"] / seconds["hand"])
    return statistics.median(ratios)


def main(cores: list[int]) -> None:
    rank = int(os.environ["RANK"])
    device = CpuDevice((cores[rank],))
    device.claim()
    dist.init_process_group("gloo")
    found = [ratio_of(size, rank, device) for size in SIZES]
    if rank == 0:
        sys.stdout.write(json.dumps(found, separators=(",", ":")) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
