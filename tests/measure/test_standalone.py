"""The memory that a row's own collectives are carried out in alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.measure import standalone
from bench.measure.operations import make_call
from bench.measure.standalone import ALIGNED, Pool

CPU = torch.device("cpu")


def span(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


def overlap(one: Tensor, other: Tensor) -> bool:
    (a, b), (c, d) = span(one), span(other)
    return a < d and c < b


def test_few_messages_have_memory_of_their_own() -> None:
    pool = Pool([1000, 10, 2000], CPU)
    taken = [pool.take(250, torch.float32), pool.take(5, torch.bfloat16), pool.take(500, torch.int)]
    assert [(one.numel(), one.dtype) for one in taken] == [
        (250, torch.float32),
        (5, torch.bfloat16),
        (500, torch.int),
    ]
    assert not any(overlap(a, b) for a in taken for b in taken if a is not b)
    assert not any(one.any() for one in taken)  # sums of nothing stay finite


def test_many_messages_take_turns_in_no_more_than_keeps_them_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standalone, "APART", 8 * ALIGNED)
    pool = Pool([ALIGNED] * 100, CPU)
    assert len(pool.bytes) == 8 * ALIGNED + 4 * ALIGNED  # and not 100, or 200
    taken = [pool.take(ALIGNED, torch.uint8) for _ in range(100)]
    for number, one in enumerate(taken):
        assert not any(overlap(one, before) for before in taken[max(0, number - 8) : number])
    assert span(taken[12]) == span(taken[0])


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "all_gather", "reduce_scatter"])
def test_what_a_call_sends_and_receives_stand_apart(
    monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    monkeypatch.setattr(standalone, "APART", 3 * ALIGNED)
    pool = Pool([2 * ALIGNED] * 20, CPU)
    for _ in range(20):
        call = make_call(
            op, size=2 * ALIGNED, dtype="fp32", device=CPU, rank=1, ranks=2, take=pool.take
        )
        assert call.sent is call.received or not overlap(call.sent, call.received)
