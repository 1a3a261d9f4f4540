from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed

from bench.plan.registry import find_strategy
from bench.run import group, worker
from bench.run.handover import RankOutcome
from bench.run.rank import Rank
from tests.fakes import make_case
from tests.run.test_outcome import assignment


class FakeDevice:
    """Notes in which order it is used."""

    torch_device = torch.device("cuda", 1)
    group_device = torch.device("cuda", 1)

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def claim(self) -> None:
        self.calls.append("claim")


def join(
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    processes: int,
    job: Any = "timing",
    carried_by: str = "nccl",
) -> Any:
    calls: list[Any] = []

    def init(backend: str, **settings: Any) -> None:
        calls.append((backend, settings["device_id"]))

    monkeypatch.setattr(distributed, "init_process_group", init)
    monkeypatch.setattr(distributed, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(group, "carrier", lambda _: carried_by)
    case = make_case(
        strategy=strategy,
        world_size=2,
        device="cuda",
        backend=None if strategy == "single" else "nccl",
    )
    rank = Rank(
        assignment=assignment(job, case=case),
        rank=0,
        local_rank=0,
        processes=processes,
        strategy=find_strategy(strategy),
        device=FakeDevice(calls),  # type: ignore[arg-type]
        outcome=RankOutcome(rank=0),
    )
    monkeypatch.setattr(Rank, "note", lambda *_, **__: None)
    worker._join(rank)
    return calls


def test_the_device_is_claimed_before_the_group_is_joined_and_told_to_nccl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = join(monkeypatch, "ddp", 2)
    assert calls == ["claim", ("cpu:gloo,cuda:nccl", torch.device("cuda", 1))]


@pytest.mark.parametrize(
    ("strategy", "processes", "job"),
    [("single", 1, "timing"), ("dp", 1, "timing"), ("ddp", 1, "reference")],
)
def test_a_process_that_shares_nothing_joins_no_group(
    monkeypatch: pytest.MonkeyPatch, strategy: str, processes: int, job: str
) -> None:
    assert join(monkeypatch, strategy, processes, job) == ["claim"]


def test_a_wrapper_on_one_device_has_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(join(monkeypatch, "ddp", 1)) == 2


def test_what_another_backend_carries_is_no_row_of_the_one_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError, match="carried by gloo, not by nccl"):
        join(monkeypatch, "ddp", 2, carried_by="gloo")
    assert len(join(monkeypatch, "ddp", 2, carried_by="NCCL2")) == 2
