from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed
from torch.distributed.tensor import DTensor

from bench.strategies import fsdp
from tests.fakes import make_case, world_of_one
from tests.strategies.test_data_parallel import context
from tests.workloads.test_workloads import build
from workloads.base import Facts


@pytest.fixture
def alone() -> Iterator[None]:
    world_of_one()
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("name", "units"), [("transformer", 2), ("embedding", 6)])
def test_each_unit_and_the_rest_are_sharded_on_the_groups_own_mesh(name: str, units: int) -> None:
    problem = build(name)
    session = fsdp.prepare(problem, context(1))
    sizes = session.bucket_bytes()
    assert sizes is not None
    rest = 0 if name == "embedding" else 1  # every parameter of it belongs to a unit
    assert len(sizes) == units + rest
    whole = 0
    for parameter in problem.model.parameters():
        assert isinstance(parameter, DTensor)
        assert parameter.device.type == "cpu"
        assert parameter.device_mesh.get_group() == distributed.group.WORLD
        whole += parameter.full_tensor().nbytes
    assert sum(sizes) == whole
    session.close()


@pytest.mark.usefixtures("alone")
def test_a_tied_weight_stays_one() -> None:
    problem = build("transformer")
    session = fsdp.prepare(problem, context(1))
    model = problem.model
    assert model.get_parameter("head.weight") is model.get_parameter("tokens.weight")
    names = [name for name, _ in session.full_parameters()]
    assert len(names) == len(set(names))
    batch = next(problem.batches(0, 1))
    session.micro_step(batch, sync=True, mark=lambda _: None)
    session.optimizer_step()
    assert model.get_parameter("head.weight") is model.get_parameter("tokens.weight")
    session.close()


@pytest.mark.usefixtures("alone")
def test_gradients_stay_whole_until_they_are_synchronised() -> None:
    problem = build("transformer")
    session = fsdp.prepare(problem, context(1, accumulation_steps=2))
    batches = problem.batches(0, 1)
    session.micro_step(next(batches), sync=False, mark=lambda _: None)
    first = [parameter.grad for parameter in problem.model.parameters()]
    session.micro_step(next(batches), sync=True, mark=lambda _: None)
    gradients = dict(session.full_gradients())
    assert len(gradients) == len(list(problem.model.parameters()))
    assert all(type(gradient) is torch.Tensor for gradient in gradients.values())
    assert all(gradient is None for gradient in first)  # not in the sharded parameters yet
    session.close()


def test_sparse_gradients_are_a_reason_not_to_run() -> None:
    sparse = Facts(unit="sample", has_sparse_gradients=True)
    reason = fsdp.check(sparse, make_case(), None)  # type: ignore[arg-type] # no machine is asked
    assert reason is not None
    assert "sparse" in reason


def test_what_must_be_said_of_its_figures() -> None:
    assert list(fsdp.flags(make_case(world_size=1))) == ["no_sharding"]
    assert list(fsdp.flags(make_case(world_size=2, backend="gloo"))) == ["fsdp_over_gloo"]
    assert list(fsdp.flags(make_case(world_size=2, backend="nccl"))) == []
