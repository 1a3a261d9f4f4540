"""Floating-point operations of a step, and how many this device can do in a second."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

import msgspec
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.measure.clock import LAST_PHASE
from bench.measure.device import Device
from bench.measure.precision import FACTORS
from bench.plan.case import Precision
from workloads.base import Batch, Build, Workload

HOST, META = torch.device("cpu"), torch.device("meta")
SMALLEST, LARGEST = 256, 8192
LONG_ENOUGH_S = 0.02
"""Of one product, for its rate to be that of larger ones."""
WARM_UP, REPEATS = 1, 5


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted, and measured, on one process."""

    micro_step_flops: int | None = None
    """Of the model's own forward and backward for one device's batch; None where it cannot be
    counted."""
    reason: str | None = None
    """Why it cannot."""
    matrix_flops_per_s: float | None = None
    """Of square products, in the precision of the case, on this device while all others did the
    same."""


def count_flops(workload: Workload, options: Any, build: Build) -> Work:
    """Count one micro-step of one device, by torch's counter on tensors without content.

    Products of matrices, convolutions and attention count, a multiplication and an addition as
    two. What activation checkpointing computes again does not, nor what a wrapper adds.

    Args:
        workload: to build.
        options: of it.
        build: for the batch, type and optimizer; its device is not used.
    """
    generators = torch.random.get_rng_state()
    try:
        # Built on the host, since what has no content has no random numbers either.
        problem = workload.build(options, dataclasses.replace(build, device=HOST))
        inputs, targets = next(problem.batches(0, 1))
        batch = Batch(tuple(one.to(META) for one in inputs), targets.to(META))
        problem.model.to(META)
        with FlopCounterMode(display=False) as counter:
            problem.loss(problem.model(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - a user's model may do what needs content
        return Work(reason=f"{type(error).__name__}: {error}")
    finally:
        torch.random.set_rng_state(generators)
    return Work(micro_step_flops=int(counter.get_total_flops()))


def matrix_rate(device: Device, precision: Precision) -> float:
    """Operations a second of products of square matrices, of random numbers.

    The size is doubled until one product takes long enough. All ranks of a launch are to do this at
    the same time, since they share the machine's memory, and its power.
    """
    kind = FACTORS[precision]
    clock = device.clock()

    def seconds(size: int) -> float:
        factor = torch.randn(size, size, device=device.torch_device).to(kind)
        product = torch.empty_like(factor)
        spent: list[float] = []
        for _ in range(WARM_UP + REPEATS):
            clock.reserve(1)
            clock.start()
            torch.matmul(factor, factor, out=product)
            clock.mark(LAST_PHASE)
            spent.append(clock.stop().step_s[0])
        return statistics.median(spent[WARM_UP:])

    size = SMALLEST
    spent_s = seconds(size)
    while spent_s < LONG_ENOUGH_S and size < LARGEST:
        size *= 2
        spent_s = seconds(size)
    return 2.0 * size**3 / spent_s
