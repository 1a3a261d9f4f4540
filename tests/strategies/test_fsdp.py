from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from bench.strategies import fsdp
from bench.strategies.base import Context
from bench.strategies.fsdp import FSDPOptions
from bench.strategies.module_session import ModuleSession
from tests.fakes import make_case, world_of_one
from tests.strategies.test_data_parallel import FACTS, context
from tests.workloads.test_workloads import build
from workloads.base import Batch, Facts, Problem


@pytest.fixture
def alone() -> Iterator[None]:
    world_of_one()
    yield
    distributed.destroy_process_group()


def alone_with(options: FSDPOptions | None = None, **changes: Any) -> Context:
    return context(1, options=options or FSDPOptions(), **changes)


def normed_problem() -> Problem:
    """A unit with a batch norm, one without, and a batch norm at the root."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.BatchNorm1d(8))
    model = nn.Sequential(inner, nn.Sequential(nn.Linear(8, 4)), nn.BatchNorm1d(4))

    def batches(shard: int | None, shards: int) -> Iterator[Batch]:
        del shard, shards
        while True:
            yield Batch((torch.randn(4, 8),), torch.zeros(4))

    return Problem(
        model=model,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        loss=lambda output, _: output.square().mean(),
        batches=batches,
        shard_units=lambda model: [model.get_submodule("0"), model.get_submodule("1")],
    )


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("name", "units"), [("transformer", 2), ("embedding", 6)])
def test_each_unit_and_the_rest_are_sharded_on_the_groups_own_mesh(name: str, units: int) -> None:
    problem = build(name)
    session = fsdp.prepare(problem, alone_with())
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
    session = fsdp.prepare(problem, alone_with())
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
    session = fsdp.prepare(problem, alone_with(accumulation_steps=2))
    batches = problem.batches(0, 1)
    session.micro_step(next(batches), sync=False, mark=lambda _: None)
    first = [parameter.grad for parameter in problem.model.parameters()]
    session.micro_step(next(batches), sync=True, mark=lambda _: None)
    gradients = dict(session.full_gradients())
    assert len(gradients) == len(list(problem.model.parameters()))
    assert all(type(gradient) is torch.Tensor for gradient in gradients.values())
    assert all(gradient is None for gradient in first)  # not in the sharded parameters yet
    session.close()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("narrow", [False, True])
def test_steps_without_synchronisation_leave_no_gradient_behind(narrow: bool) -> None:
    problem = build("transformer")
    asked = FSDPOptions(mixed_precision="bf16", reduce_dtype="fp32") if narrow else FSDPOptions()
    context = alone_with(asked, precision="bf16-amp" if narrow else "fp32")
    session = fsdp.prepare(problem, context)
    (batch,) = itertools.islice(problem.batches(0, 1), 1)

    def gradients(*, skipped: int) -> dict[str, Tensor]:
        for _ in range(skipped):
            session.micro_step(batch, sync=False, mark=lambda _: None)
            session.optimizer_step()
        session.micro_step(batch, sync=True, mark=lambda _: None)
        found = {name: one.clone() for name, one in session.full_gradients()}
        assert isinstance(session, ModuleSession)
        session.optimizer.zero_grad()
        return found

    plain, after = gradients(skipped=0), gradients(skipped=3)
    for name, gradient in plain.items():
        torch.testing.assert_close(after[name], gradient)
    session.close()


def test_sparse_gradients_are_a_reason_not_to_run() -> None:
    sparse = Facts(unit="sample", has_sparse_gradients=True)
    reason = fsdp.check(sparse, make_case(), None)  # type: ignore[arg-type] # no machine is asked
    assert reason is not None
    assert "sparse" in reason


def test_what_must_be_said_of_its_figures() -> None:
    assert list(fsdp.flags(FACTS, make_case(world_size=1))) == ["no_sharding"]
    assert list(fsdp.flags(FACTS, make_case(world_size=2, backend="gloo"))) == ["fsdp_over_gloo"]
    assert list(fsdp.flags(FACTS, make_case(world_size=2, backend="nccl"))) == []


@pytest.mark.usefixtures("alone")
def test_a_default_passes_nothing_but_the_mesh_to_torch() -> None:
    assert set(fsdp._arguments(alone_with())) == {"mesh"}
    asked = FSDPOptions(
        reshard_after_forward=False, mixed_precision="bf16", reduce_dtype="fp32", cpu_offload=True
    )
    found = fsdp._arguments(alone_with(asked, precision="bf16-amp"))
    assert found["reshard_after_forward"] is False
    assert found["mp_policy"].param_dtype == torch.bfloat16
    assert found["mp_policy"].reduce_dtype == torch.float32
    assert type(found["offload_policy"]).__name__ == "CPUOffloadPolicy"
    # A proof in fp64 is told fp32: no policy may cast it down.
    assert "mp_policy" not in fsdp._arguments(alone_with(asked))


@pytest.mark.usefixtures("alone")
def test_the_root_alone_is_one_unit() -> None:
    problem = build("transformer")
    session = fsdp.prepare(problem, alone_with(FSDPOptions(wrap="root")))
    assert session.bucket_bytes() == [
        sum(p.nbytes for p in build("transformer").model.parameters())
    ]
    session.close()


@pytest.mark.usefixtures("alone")
def test_own_mixed_precision_casts_all_but_batch_norms() -> None:
    problem = normed_problem()
    where = alone_with(FSDPOptions(mixed_precision="bf16"), precision="bf16-amp")
    session = fsdp.prepare(problem, where)
    seen: set[tuple[bool, torch.dtype]] = set()

    def see(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del inputs, output
        seen.add((isinstance(module, nn.Linear), module.get_parameter("weight").dtype))

    for module in problem.model.modules():
        if isinstance(module, nn.Linear | nn.BatchNorm1d):
            module.register_forward_hook(see, prepend=True)
    batches = problem.batches(0, 1)
    for _ in range(2):
        loss = session.micro_step(next(batches), sync=True, mark=lambda _: None)
        assert {g.dtype for _, g in session.full_gradients()} == {torch.float32}
        session.optimizer_step()
    assert seen == {(True, torch.bfloat16), (False, torch.float32)}
    assert loss.dtype == torch.bfloat16  # in no autocast, which would have widened it
    # The two norms of the unit at once, or each alone on older torch; the root's own; and three
    # units, one of them of no more.
    norms = [2 * 2 * 8 * 4] if fsdp._casts_for_each() else [2 * 8 * 4] * 2
    assert session.bucket_bytes() == [*norms, 2 * 4 * 4, 72 * 4, 36 * 4]
    session.close()


@pytest.mark.usefixtures("alone")
def test_what_is_offloaded_is_not_on_the_device() -> None:
    problem = normed_problem()
    session = fsdp.prepare(problem, alone_with(FSDPOptions(cpu_offload=True)))
    before = [value.clone() for _, value in session.full_parameters()]
    session.micro_step(next(problem.batches(0, 1)), sync=True, mark=lambda _: None)
    session.optimizer_step()
    assert not all(map(torch.equal, before, [value for _, value in session.full_parameters()]))
    (held,) = session.held_bytes()
    assert held["parameters"] == held["optimizer_state"] == 0
    assert held["buffers"] > 0
    session.close()
