"""What can be set of ``ddp``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from bench.plan.case import Natural, PositiveFloat, PositiveInt
from bench.strategies import comm_hooks
from bench.strategies.base import Options
from bench.strategies.comm_hooks import CommHook


class DDPOptions(Options, frozen=True, kw_only=True):
    """Settings of ``ddp``. A default is not passed to torch at all."""

    bucket_cap_mb: PositiveFloat | None = None
    """Size in MiB at which a gradient bucket closes. Null leaves torch its own rule, which is
    not the same as 25: without a cap the first bucket is kept at 1 MiB, to start early. Helps,
    when raised, where each collective takes long to begin, and when lowered, to begin sooner.
    Costs overlap if buckets are few, and a start-up time for each if they are many."""
    bucket_cap_mb_list: Annotated[list[PositiveFloat], msgspec.Meta(min_length=1)] | None = None
    """A cap in MiB for each bucket, in the order in which gradients become ready; the last one
    holds for all that follow. Helps to let a small first bucket start early, with large ones
    after it. Costs what its buckets cost: a start-up time each."""
    static_graph: bool = False
    """Promise that every step uses the same parameters in the same order: DDP looks for unused
    ones in the first step only. With accumulation the very first micro-step of all
    synchronises, since torch fails otherwise. Helps where find_unused_parameters would search
    in each step. Costs the freedom to branch by data."""
    gradient_as_bucket_view: bool = False
    """Let gradients be views into the buckets. Helps by saving one copy of all gradients while
    the optimizer steps. Costs nothing but that gradients cannot be detached in place; autograd
    makes a new gradient in each step all the same, and DDP copies it."""
    find_unused_parameters: bool = False
    """Search the graph of each step for parameters without a gradient. Helps models in which
    there are some that change from step to step. Costs a walk through the graph and one more
    small all-reduce, in each step."""
    broadcast_buffers: bool = True
    """Send the first rank's buffers to all before each forward. Helps, as false, models with
    batch norm, by a broadcast a step. Costs, as false, that each rank keeps running statistics
    of its own samples."""
    comm_hook: CommHook = "none"
    """What is sent in place of the gradients: their halves in fp16 or bf16, or powersgd's
    low-rank factors. Helps where the link is slow. Costs time to compress, and trains on other
    gradients: the parity column says how far off. Hierarchical sends all of them, level by level:
    the ranks of a host reduce them, each with a share, before hosts do, so that less leaves a
    host, and is exact. Helps where several ranks share a host, and its link is slow next to what
    is within it. Costs three collectives in place of one, and, over
    gloo, what overlaps otherwise."""
    powersgd_rank: PositiveInt = 1
    """Rank of powersgd's factors. Helps, when raised, to keep more of the gradient. Costs bytes
    and time in proportion."""
    powersgd_start: PositiveInt = comm_hooks.POWERSGD_LEAST_START
    """Optimizer steps before powersgd compresses, at least 2; torch's own default is 1000. They
    are part of the warm-up. Helps training to get off the ground before it is approximated.
    Costs a warm-up as long as they take."""
    local_sgd_period: PositiveInt | None = None
    """Post-local SGD: ranks train apart, and average their parameters every so many steps. Null
    synchronises gradients in each step. Helps where communication binds, since nearly all of it
    goes. Costs that ranks train another model in between, and, while they average, a second copy
    of all parameters."""
    local_sgd_start: Natural = 2
    """Optimizer steps of plain DDP before ranks train apart. They are part of the warm-up.
    Helps training to get off the ground before ranks drift. Costs a warm-up as long as they
    take."""
    sync_batchnorm: bool = False
    """Normalise over the batch of all ranks: ``SyncBatchNorm`` in place of each batch norm. Not
    an argument of DDP's; on accelerators only, as torch has it. Helps models with batch norm
    whose batch on each device is small. Costs a collective in each such layer, forward and
    backward, which nothing hides."""
