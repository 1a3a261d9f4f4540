"""The collectives themselves, each with data by which a wrong result is found.

Element i of what rank r sends is ``(i + r) mod 3``: exact in every type, as are sums over up to 128
ranks, and different on neighbouring ranks and places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import P2POp

PERIOD = 3
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
    "int8": torch.int8,
}
NAMES = {
    "float": "fp32",
    "c10::half": "fp16",
    "half": "fp16",
    "c10::bfloat16": "bf16",
    "bfloat16": "bf16",
    "double": "fp64",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "char": "int8",
    "byte": "int8",
    "unsigned char": "int8",
    "signed char": "int8",
    "bool": "int8",
}
"""Of a trace, lower case; operators on a CPU and NCCL spell them differently."""
CARRIED = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"}
)
"""What ``make_call`` makes."""

ALL_GATHER: Any = (
    getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
)
REDUCE_SCATTER: Any = (
    getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
)
"""Of one tensor into one, by the name that this torch wants them called."""

Expected = Callable[[int], int]
"""What element i of a result is."""
Take = Callable[[int, torch.dtype], Tensor]
"""Makes a flat tensor of so many elements."""


def type_named(spelling: str | None) -> str:
    """Our name of a type as a trace spells it; fp32 for one that is not known.

    >>> type_named("c10::BFloat16"), type_named("Float"), type_named(None)
    ('bf16', 'fp32', 'fp32')
    """
    return NAMES.get((spelling or "").lower(), "fp32")


def slowest(value: float) -> float:
    """Largest value over all ranks; on host tensors, so that no device is involved."""
    agreed = torch.tensor(value, dtype=torch.float64)
    distributed.all_reduce(agreed, op=distributed.ReduceOp.MAX)
    return agreed.item()


def carrier(device: torch.device) -> str:
    """Name that the backend of the default group gives itself, for tensors of a device."""
    group = distributed.group.WORLD
    assert group is not None, "the process has joined a group"
    return str(group._get_backend(device).name())


def is_carried_by(backend: str, name: str | None) -> bool:
    """Whether a backend's own name is that of the one asked for: ``nccl``, and ``NCCL`` too."""
    return name is not None and backend in name.lower()


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective on buffers of its own."""

    run: Callable[[], None]
    sent: Tensor
    """What this rank sends; overwritten by operations that work in place."""
    received: Tensor
    expected: list[tuple[int, Expected]]
    """For each part of what is received, its length and its elements."""

    def fill(self, rank: int) -> None:
        """Make a result that can be checked."""
        self.received.zero_()
        for first in range(PERIOD):
            self.sent[first::PERIOD] = (first + rank) % PERIOD

    def clear(self) -> None:
        """Make sums that stay finite however often they are repeated."""
        self.sent.zero_()
        self.received.zero_()

    def is_right(self) -> bool:
        """Whether what was received is what should have been."""
        begin = 0
        for length, expected in self.expected:
            part = self.received[begin : begin + length]
            for first in range(min(PERIOD, length)):
                if not bool((part[first::PERIOD] == expected(first)).all()):
                    return False
            begin += length
        return True


def make_call(
    op: str,
    *,
    size: int,
    dtype: str,
    device: torch.device,
    rank: int,
    ranks: int,
    take: Take | None = None,
) -> Call:
    """A collective among all ranks of the default group.

    Args:
        op: its name.
        size: bytes as ``Collective.bytes`` counts them; rounded up to whole elements a rank.
        dtype: of the elements.
        device: that holds them.
        rank: of this process.
        ranks: in the group.
        take: makes its buffers on that device; None for memory of their own.
    """
    kind = DTYPES[dtype]
    share = -(-size // (kind.itemsize * ranks))
    count = share * ranks

    def buffer(length: int) -> Tensor:
        return (
            torch.empty(length, dtype=kind, device=device) if take is None else take(length, kind)
        )

    def of(sender: int, begin: int = 0) -> Expected:
        return lambda index: (begin + index + sender) % PERIOD

    def total(begin: int = 0) -> Expected:
        return lambda index: sum((begin + index + one) % PERIOD for one in range(ranks))

    match op:
        case "all_reduce":
            whole = buffer(count)
            return Call(
                run=lambda: _done(distributed.all_reduce(whole)),
                sent=whole,
                received=whole,
                expected=[(count, total())],
            )
        case "broadcast":
            whole = buffer(count)
            return Call(
                run=lambda: _done(distributed.broadcast(whole, src=0)),
                sent=whole,
                received=whole,
                expected=[(count, of(0))],
            )
        case "all_gather":
            sent, received = buffer(share), buffer(count)
            return Call(
                run=lambda: _done(ALL_GATHER(received, sent)),
                sent=sent,
                received=received,
                expected=[(share, of(one)) for one in range(ranks)],
            )
        case "reduce_scatter":
            sent, received = buffer(count), buffer(share)
            return Call(
                run=lambda: _done(REDUCE_SCATTER(received, sent)),
                sent=sent,
                received=received,
                expected=[(share, total(rank * share))],
            )
        case "all_to_all":
            sent, received = buffer(count), buffer(count)
            return Call(
                run=lambda: _done(distributed.all_to_all_single(received, sent)),
                sent=sent,
                received=received,
                expected=[(share, of(one, rank * share)) for one in range(ranks)],
            )
        case "send_recv":
            sent, received = buffer(count), buffer(count)
            before, after = (rank - 1) % ranks, (rank + 1) % ranks
            return Call(
                run=lambda: _around(sent, after, received, before),
                sent=sent,
                received=received,
                expected=[(count, of(before))],
            )
    raise AssertionError(f"no operation {op}")


def _done(work: object) -> None:
    """A call that waits returns nothing."""
    assert work is None, "not asked to be asynchronous"


def _around(sent: Tensor, to: int, received: Tensor, source: int) -> None:
    """Each rank sends to the next while it receives from the one before.

    In one batch: a lone send would make NCCL's calls wait for each other.
    """
    pair = [P2POp(distributed.isend, sent, to), P2POp(distributed.irecv, received, source)]
    for work in distributed.batch_isend_irecv(pair):
        work.wait()
