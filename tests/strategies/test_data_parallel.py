from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from bench.strategies import data_parallel
from bench.strategies.base import Context, Session
from bench.strategies.data_parallel import ReplicaSession
from tests.fakes import make_case
from tests.workloads.test_workloads import build
from workloads.base import Facts, Problem

FACTS = Facts(unit="token")


def context(world_size: int = 2, **changes: object) -> Context:
    fields: dict[str, object] = {
        "device": torch.device("cpu"),
        "rank": 0,
        "world_size": world_size,
        "precision": "fp32",
        "accumulation_steps": 1,
        "options": None,
    }
    return Context(**(fields | changes))  # type: ignore[arg-type] # made of the fields above


@pytest.fixture
def sessions() -> Iterator[list[Session]]:
    opened: list[Session] = []
    yield opened
    for session in opened:
        session.close()


def prepare(sessions: list[Session], problem: Problem, where: Context) -> ReplicaSession:
    session = data_parallel.prepare(problem, where)
    sessions.append(session)
    assert isinstance(session, ReplicaSession)
    return session


def test_every_replica_works_in_its_own_thread_on_its_own_device(sessions: list[Session]) -> None:
    seen: list[tuple[int, int]] = []

    class Spy(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Tensor) -> Tensor:
            seen.append((threading.get_ident(), len(inputs[0])))
            output: Tensor = self.model(*inputs)
            return output

    entered: dict[int, int] = {}

    def enter(index: int) -> None:
        entered[threading.get_ident()] = index

    problem = build("transformer")
    spied = Problem(
        model=Spy(problem.model),
        make_optimizer=problem.make_optimizer,
        loss=problem.loss,
        batches=problem.batches,
        shard_units=problem.shard_units,
    )
    session = prepare(sessions, spied, context(3, enter_device=enter))
    batches = problem.batches(None, 3)
    for _ in range(2):
        session.micro_step(next(batches), sync=True, mark=lambda _: None)
        session.optimizer_step()
    threads = {thread for thread, _ in seen}
    assert len(threads) == 3
    assert {entered[thread] for thread in threads} == {0, 1, 2}
    assert os.getpid() not in threads
    assert {count for _, count in seen} == {2}  # each replica sees its own samples


def test_what_moves_is_marked_as_a_piece_of_its_phase(sessions: list[Session]) -> None:
    marks: list[str] = []
    problem = build("embedding")
    session = prepare(sessions, problem, context())
    session.micro_step(next(problem.batches(None, 2)), sync=True, mark=marks.append)
    assert marks == [
        "forward.broadcast",
        "forward.scatter",
        "forward",
        "forward.gather",
        "forward",
        "backward",
        "backward.scatter",
        "backward",
        "backward.reduce",
    ]


def test_only_the_first_device_has_an_optimizer(sessions: list[Session]) -> None:
    problem = build("resnet152", optimizer="adamw")
    session = prepare(sessions, problem, context())
    session.micro_step(next(problem.batches(None, 2)), sync=True, mark=lambda _: None)
    session.optimizer_step()
    first, second = session.held_bytes()
    parameters = sum(parameter.nbytes for parameter in problem.model.parameters())
    assert first["parameters"] == second["parameters"] == parameters
    assert first["optimizer_state"] > 2 * parameters
    assert second["optimizer_state"] == 0


def test_the_replicas_follow_the_first_in_parameters_and_buffers(sessions: list[Session]) -> None:
    problem = build("resnet152")
    session = prepare(sessions, problem, context())
    batches = problem.batches(None, 2)
    for _ in range(2):
        session.micro_step(next(batches), sync=True, mark=lambda _: None)
        session.optimizer_step()
    session.micro_step(next(batches), sync=True, mark=lambda _: None)
    first, second = session.replicas
    for own, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(own, other)
    # Running statistics are the first's: those of the replicas are overwritten, as torch's are.
    assert not torch.equal(first.get_buffer("bn1.running_mean"), torch.zeros(64))


def test_a_fault_in_a_replica_is_raised(sessions: list[Session]) -> None:
    problem = build("transformer")
    session = prepare(sessions, problem, context())
    batch = next(problem.batches(None, 2))
    batch.inputs[0][-1] = 10**6  # a token that does not exist, in the second replica's samples
    with pytest.raises(IndexError):
        session.micro_step(batch, sync=True, mark=lambda _: None)


def test_on_one_device_the_module_is_called_as_it_is(sessions: list[Session]) -> None:
    problem = build("transformer")
    session = data_parallel.prepare(problem, context(1))
    sessions.append(session)
    assert not isinstance(session, ReplicaSession)


def test_on_a_cpu_it_says_that_it_is_a_reference() -> None:
    assert list(data_parallel.flags(FACTS, make_case(device="cpu"))) == ["reference_implementation"]
    assert list(data_parallel.flags(FACTS, make_case(device="cuda"))) == []


def test_torchs_class_gets_all_devices_of_the_case_and_the_precision_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed: list[tuple[nn.Module, list[int]]] = []

    class FakeDataParallel(nn.Module):
        def __init__(self, module: nn.Module, device_ids: list[int]) -> None:
            super().__init__()
            passed.append((module, device_ids))

    monkeypatch.setattr(nn, "DataParallel", FakeDataParallel)
    problem = build("transformer")
    where = context(4, device=torch.device("meta"), precision="bf16-amp")
    data_parallel.prepare(problem, where)
    ((module, device_ids),) = passed
    assert device_ids == [0, 1, 2, 3]
    # In a thread without autocast, as torch's replicas run: the region is the module's own.
    regions: list[torch.dtype] = []
    monkeypatch.setattr(
        problem.model, "forward", lambda _: regions.append(torch.get_autocast_dtype("cpu"))
    )
    object.__setattr__(where, "device", torch.device("cpu"))
    module(torch.zeros(1))
    assert regions == [torch.bfloat16]
