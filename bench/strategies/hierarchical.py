"""DDP's gradients reduced level by level: within each host, between hosts, and within again.

As Horovod's ``HOROVOD_HIERARCHICAL_ALLREDUCE`` does it. The ranks of a host reduce a bucket so
that each holds the sum of one share of it, all-reduce that share with the ranks of the same place
on the other hosts, and gather the shares. Of S bytes on h hosts of r ranks, each rank sends at
least S (r - 1) / r twice within its host, and S / r times 2 (h - 1) / h to other hosts. So 2 S
(h - 1) / h leave each host; of one ring over all n ranks, 2 S (n - 1) / n.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from bench.measure.ranges import BUFFERS
from bench.plan.case import Case
from bench.strategies import groups
from bench.strategies.base import Context

WITHIN = ("reduce_scatter", "all_to_all", "all_gather")
"""Operations of a host's ranks, over any backend."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The two groups that a rank belongs to."""

    within: ProcessGroup
    """All ranks of its host."""
    between: ProcessGroup
    """Of each host, the rank in its place."""

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.within.size() * self.between.size()


def refusal(case: Case) -> str | None:
    """Why a case has no two levels; None where it has."""
    if case.nodes == 1:
        return "a hierarchical all-reduce needs several hosts, and has one; leave comm_hook out"
    if case.nodes == case.world_size:
        return (
            "a hierarchical all-reduce needs several ranks on each host, and has one: that would be"
            " the all-reduce that DDP has by itself; leave comm_hook out"
        )
    return None


def operation_ranks(case: Case) -> Mapping[str, int]:
    """Ranks of the group that each operation runs in."""
    within = dict.fromkeys(WITHIN, case.world_size // case.nodes)
    return within | {"all_reduce": case.nodes}


def register(module: DistributedDataParallel, context: Context) -> None:
    """Give a module its hook, and this rank its groups. Collective.

    Args:
        module: without a hook.
        context: of the rank; as many ranks on each of its hosts, neighbours on the same.
    """
    between, within = groups.make_groups(context.world_size // context.nodes, context.world_size)
    in_order = groups.backend_of(context.device) != "gloo"
    module.register_comm_hook(
        Levels(within=within, between=between), chained if in_order else one_after_the_other
    )


@functools.wraps(allreduce_hook)
def chained(levels: Levels, bucket: GradBucket) -> Future[Tensor]:
    """Each level after the one before, without waiting on the host."""
    whole, share = _prepared(levels, bucket)

    def reduce_between(_: Future[list[Tensor]]) -> Tensor:
        work = distributed.all_reduce(share, group=levels.between, async_op=True)
        return _result(work)

    def gather(_: Future[Tensor]) -> Tensor:
        work = groups.ALL_GATHER(whole, share, group=levels.within, async_op=True)
        _result(work)
        return _returned(whole, bucket)

    first = groups.REDUCE_SCATTER(share, whole, group=levels.within, async_op=True)
    reduced: Future[list[Tensor]] = first.get_future()
    return reduced.then(reduce_between).then(gather)


@functools.wraps(allreduce_hook)
def one_after_the_other(levels: Levels, bucket: GradBucket) -> Future[Tensor]:
    """For gloo, which waits for a bucket before the next one is sent.

    The second level begins when the first has ended, which over gloo is told on threads whose order
    differs between ranks: messages of two buckets would be taken for each other. And gloo's own
    reduce-scatter sums everything on every rank; to send each rank its share, and sum it there,
    moves half as much.
    """
    whole, share = _prepared(levels, bucket)
    with record_function(BUFFERS):
        shares = torch.empty_like(whole)
    distributed.all_to_all_single(shares, whole, group=levels.within)
    torch.sum(shares.view(levels.within.size(), -1), dim=0, out=share)
    del shares  # before others are made for the next level
    distributed.all_reduce(share, group=levels.between)
    groups.ALL_GATHER(whole, share, group=levels.within)
    future: Future[Tensor] = Future()
    future.set_result(_returned(whole, bucket))
    return future


def _prepared(levels: Levels, bucket: GradBucket) -> tuple[Tensor, Tensor]:
    """(this rank's part of the mean, as long as can be shared out equally; its own share of that).

    Divided before anything is summed, as torch does it, so that narrow types do not overflow.
    """
    whole, shares = bucket.buffer().div_(levels.ranks), levels.within.size()
    missing = -whole.numel() % shares
    if missing:
        whole = torch.nn.functional.pad(whole, (0, missing))
    return whole, whole.chunk(shares)[levels.within.rank()]


def _returned(whole: Tensor, bucket: GradBucket) -> Tensor:
    """The bucket itself, with what was reduced in it."""
    buffer = bucket.buffer()
    return buffer if whole.numel() == buffer.numel() else buffer.copy_(whole[: buffer.numel()])


def _result(work: distributed.Work | None) -> Tensor:
    """What a collective gives, once what follows on this stream may use it."""
    assert work is not None, "it was asked to be asynchronous"
    tensors: list[Tensor] = work.get_future().wait()
    return tensors[0]
