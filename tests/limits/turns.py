"""Under torchrun: a loop written by hand and ours, in turns within the same two processes.

Two ranks on two cores scatter by a tenth from launch to launch, so that what a loop costs does not
show between launches. Prints, on the first rank, the ratio of ours to the other for each pair.
"""

from __future__ import annotations

import json
import os
import sys
import time

import msgspec
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

from bench.measure.device import CpuDevice
from bench.plan.registry import find_strategy, find_workload
from bench.run.loop import Engine, run_block
from bench.strategies.base import Context
from workloads.base import Build

PAIRS = 24
STEPS = 2


def slowest(value: float) -> float:
    agreed = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    return agreed.item()


class ByHand:
    """The loop that people write."""

    def __init__(self, rank: int) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(torchvision.models.resnet152(num_classes=1000))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self.criterion = torch.nn.CrossEntropyLoss()
        torch.manual_seed(rank)
        self.batches = [(torch.randn(4, 3, 32, 32), torch.randint(1000, (4,))) for _ in range(4)]
        self.count = 0

    def seconds(self, steps: int) -> float:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            images, labels = self.batches[self.count % 4]
            self.count += 1
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return slowest(time.perf_counter() - begin)


def our_engine(rank: int, device: CpuDevice) -> Engine:
    workload, strategy = find_workload("resnet152"), find_strategy("ddp")
    build = Build(
        device=device.torch_device,
        dtype=torch.float32,
        seed=0,
        per_device_batch=4,
        optimizer="sgd",
    )
    problem = workload.build(workload.presets["tiny"].options, build)
    context = Context(
        device=device.torch_device,
        rank=rank,
        world_size=2,
        precision="fp32",
        accumulation_steps=1,
        options=msgspec.convert({}, strategy.options),
    )
    return Engine(
        session=strategy.prepare(problem, context),
        batches=problem.batches(rank, 2),
        clock=device.clock(),
        slowest=slowest,
        accumulation_steps=1,
    )


def main(cores: list[int]) -> None:
    rank = int(os.environ["RANK"])
    device = CpuDevice((cores[rank],))
    device.claim()
    dist.init_process_group("gloo")
    by_hand, engine = ByHand(rank), our_engine(rank, device)

    def ours(steps: int) -> float:
        slowest(0.0)
        return slowest(run_block(engine, steps).elapsed_s)

    for warm_up in (by_hand.seconds, ours):
        warm_up(4)
    ratios = []
    for pair in range(PAIRS):
        turn = [("hand", by_hand.seconds), ("ours", ours)]
        seconds = {name: run(STEPS) for name, run in (turn if pair % 2 else reversed(turn))}
        ratios.append(seconds["hand"] / seconds["ours"])
    if rank == 0:
        sys.stdout.write(json.dumps(ratios, separators=(",", ":")) + "\n")
    engine.session.close()
    dist.barrier()
    del by_hand
    dist.destroy_process_group()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
