"""A row's own collectives alone: its messages in their order, back to back, nothing in between."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor, distributed

from bench.measure.clock import LAST_PHASE, Clock
from bench.measure.device import Device, is_out_of_memory
from bench.measure.operations import CARRIED, Call, make_call, slowest, type_named
from bench.measure.trace import Span, StepsTrace

WARM_UP, REPEATS = 1, 7
APART = 2**28
"""Bytes that other messages use before memory is used again: more than a cache holds, so that each
message finds its memory as cold as in a step, where every bucket has its own."""
ALIGNED = 512
"""Bytes at whose multiples buffers begin, as torch's allocators have it."""
LARGEST_ELEMENT = 8
MOST_BUFFERS = 2
"""Of a call, each of a message's size at most."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of a step."""

    operation: str
    size: int
    """Bytes as ``Span.payload_bytes`` counts them."""
    dtype: str
    """Of its elements, as ``operations.DTYPES`` names it."""


def messages_of(trace: StepsTrace, steps: int, ranks: int) -> list[Message] | None:
    """What is communicated in the first steps of a trace, in order.

    Args:
        trace: of the profiled steps.
        steps: of them, after which they repeat themselves.
        ranks: of the whole group.

    Returns:
        None where that cannot be carried out again: a message of unknown size, or within a part of
        the ranks, or moved by the strategy itself.
    """
    spans = trace.spans[: len(trace.spans) * steps // trace.steps]
    found = [_message(span, ranks) for span in spans]
    known = [one for one in found if one is not None]
    return known if known and len(known) == len(found) else None


def _message(span: Span, ranks: int) -> Message | None:
    if span.operation not in CARRIED or not span.payload_bytes or span.ranks not in {None, ranks}:
        return None
    dtype = type_named(span.item_type)
    return Message(operation=span.operation, size=span.payload_bytes, dtype=dtype)


def measure_alone(
    messages: Sequence[Message] | None, device: Device, *, rank: int, ranks: int
) -> list[list[float]]:
    """Seconds of each message, for each of some repeats; nothing where they are not known.

    All ranks together: they carry out what the first one has seen, since two threads of a backend
    may have begun two messages in either order.

    Args:
        messages: of one round of steps, as this rank has seen them.
        device: of this process.
        rank: of this process.
        ranks: of the group.
    """
    shared: list[bytes] = [msgspec.json.encode(messages)]
    distributed.broadcast_object_list(shared, src=0, device=torch.device("cpu"))
    agreed = msgspec.json.decode(shared[0], type=list[Message] | None)
    if agreed is None:
        return []
    calls = _calls(agreed, device, rank=rank, ranks=ranks)
    if slowest(float(calls is None)) or calls is None:  # or the others would wait for this rank
        return []
    clock = device.clock()
    repeats = [_row(clock, device, calls) for _ in range(WARM_UP + REPEATS)]
    return repeats[WARM_UP:]


class Pool:
    """Memory that is used in turns, so that what follows each other stands apart.

    As much as ``APART`` and the largest call need, and no more than all together.

    Args:
        sizes: bytes of each message, at most.
        device: that holds it.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        # Twice what a call has, so that none of its buffers comes around to another of them.
        most = APART + 2 * MOST_BUFFERS * _aligned(max(sizes, default=0))
        every = MOST_BUFFERS * sum(map(_aligned, sizes))
        self.bytes = torch.zeros(min(most, every), dtype=torch.uint8, device=device)
        self._at = 0

    def take(self, length: int, dtype: torch.dtype) -> Tensor:
        """The next so many elements."""
        size = length * dtype.itemsize
        if self._at + size > len(self.bytes):
            self._at = 0
        taken = self.bytes[self._at : self._at + size].view(dtype)
        self._at += _aligned(size)
        return taken


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _calls(
    messages: Sequence[Message], device: Device, *, rank: int, ranks: int
) -> list[Call] | None:
    """Each of the messages; None where memory does not suffice for them."""
    try:
        # A message is rounded up to whole elements of each rank.
        sizes = [one.size + ranks * LARGEST_ELEMENT for one in messages]
        pool = Pool(sizes, device.torch_device)
        return [
            make_call(
                one.operation,
                size=one.size,
                dtype=one.dtype,
                device=device.torch_device,
                rank=rank,
                ranks=ranks,
                take=pool.take,
            )
            for one in messages
        ]
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _row(clock: Clock, device: Device, row: Sequence[Call]) -> list[float]:
    clock.reserve(len(row) + 3)
    slowest(0.0)  # all begin together
    clock.start()
    device.occupy(len(row))
    clock.mark("align")
    for number, call in enumerate(row):
        call.run()
        clock.mark(f"call.{number}")
    clock.mark(LAST_PHASE)
    phases = clock.stop().phase_s
    return [phases[f"call.{number}"][0] for number in range(len(row))]
