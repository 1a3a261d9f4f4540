"""DDP's communication hooks: what happens to a bucket of gradients in place of an all-reduce.

Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
2019. They are torch's own, from ``torch.distributed.algorithms.ddp_comm_hooks``, but for the
hierarchical one, which is in ``bench.strategies.hierarchical``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from bench.strategies import groups, hierarchical
from bench.strategies.base import Context
from bench.strategies.nature import Exactness

CommHook = Literal["none", "fp16", "bf16", "powersgd", "hierarchical"]
Hook = Callable[[Any, GradBucket], Future[Tensor]]

HOOKS: dict[CommHook, Hook] = {
    "fp16": fp16_compress_hook,
    "bf16": bf16_compress_hook,
    "powersgd": powerSGD_hook,
    "hierarchical": hierarchical.chained,
}
TYPES: dict[CommHook, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""What a hook turns gradients into."""
POWERSGD_LEAST_START = 2
"""torch refuses less, since DDP rebuilds its buckets in the second step."""

EXACTNESS: dict[CommHook, Exactness] = {
    "none": Exactness(),
    # Each gradient is rounded twice, to 2**-11 or 2**-8 of its size. fp16 has nothing between 0
    # and 6e-8, so that a tensor of small gradients loses more. Half a gradient is off by 0.5.
    "fp16": Exactness(kind="lossy", gradient_error=0.1),
    "bf16": Exactness(kind="lossy", gradient_error=0.1),
    # What is left is the gradient's projection on a few directions, which are random at first. Of
    # a table of n rows that all differ, rank 1 may keep no more than one n-th.
    # That of a few samples has no more directions than those, and may be kept whole.
    "powersgd": Exactness(kind="lossy", gradient_error=1 - 1e-6, may_keep_all=True),
    # The same sum in another order.
    "hierarchical": Exactness(),
}


def refusal(hook: CommHook, *, powersgd_start: int) -> str | None:
    """What the installed torch says against a hook, in one line; None where it says nothing.

    Asked of torch itself, without a group or a device: which hooks it takes depends on its build.
    """
    try:
        if hook == "powersgd":
            PowerSGDState(None, start_powerSGD_iter=powersgd_start)
        _check(hook)
    except (TypeError, ValueError, RuntimeError) as error:
        return " ".join(str(error).split())
    return None


def _check(hook: CommHook) -> None:
    """DDP's own look at a hook, which ``register_comm_hook`` begins with."""
    look = getattr(DistributedDataParallel, "_check_comm_hook", None)
    if look is not None and hook in HOOKS:
        look(_Asked(), HOOKS[hook])


class _Asked:
    """Stands in for the module that is asked: all that the look at a hook uses of it."""

    def _log_and_throw(self, kind: type[Exception], message: str) -> NoReturn:
        raise kind(message)


@functools.cache
def adds_sparse(hook: CommHook) -> bool:
    """Whether torch can add sparse tensors of a hook's type, which gloo leaves to it."""
    one = torch.ones(1, dtype=TYPES[hook]).to_sparse()
    try:
        one.add(one)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def calls_in(steps: int, context: Context, *, static_graph: bool) -> int:
    """How often DDP calls a bucket's hook in the first optimizer steps.

    Once for each backward that synchronises. With a static graph that includes the first of all.
    """
    micro_steps = context.accumulation_steps
    if micro_steps > 1 and context.accumulation_sync == "every":
        return steps * micro_steps
    return steps + 1 if micro_steps > 1 and static_graph and steps > 0 else steps


def register(
    module: DistributedDataParallel,
    hook: CommHook,
    *,
    context: Context,
    powersgd_rank: int,
    powersgd_start: int,
) -> None:
    """Give a module its hook.

    Args:
        module: without one.
        hook: which.
        context: of this rank.
        powersgd_rank: of the approximation.
        powersgd_start: calls before it compresses.
    """
    if hook == "hierarchical":
        hierarchical.register(module, context)
        return
    if hook != "powersgd":
        module.register_comm_hook(None, HOOKS[hook])
        return
    state = PowerSGDState(
        None, matrix_approximation_rank=powersgd_rank, start_powerSGD_iter=powersgd_start
    )
    in_order = groups.backend_of(context.device) != "gloo"
    module.register_comm_hook(state, powerSGD_hook if in_order else one_after_the_other)


@functools.wraps(powerSGD_hook)
def one_after_the_other(state: PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """PowerSGD for gloo, which waits for a bucket before the next one is sent.

    It sends the second and third message of a bucket when the one before has arrived. Over gloo
    that happens on threads whose order differs between ranks, so that messages of two buckets, or
    that of ``find_unused_parameters``, would be taken for each other.
    """
    future: Future[Tensor] = powerSGD_hook(state, bucket)
    future.wait()
    return future
