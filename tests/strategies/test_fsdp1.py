from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from bench.strategies import fsdp1
from bench.strategies.base import Context
from bench.strategies.fsdp1 import FSDP1Options
from tests.strategies.test_data_parallel import context
from tests.strategies.test_fsdp import alone, normed_problem
from tests.workloads.test_workloads import build

__all__ = ["alone"]


def alone_with(options: FSDP1Options | None = None, precision: str = "fp32") -> Context:
    return context(1, options=options or FSDP1Options(), precision=precision)


@pytest.mark.usefixtures("alone")
def test_parameters_and_gradients_have_the_names_of_the_model_as_it_was() -> None:
    problem = build("transformer")
    expected = {name: p.detach().clone() for name, p in problem.model.named_parameters()}
    session = fsdp1.prepare(problem, alone_with())
    session.micro_step(next(problem.batches(0, 1)), sync=True, mark=lambda _: None)
    found = dict(session.full_parameters())
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    gradients = dict(session.full_gradients())
    assert {name: g.shape for name, g in gradients.items()} == {
        name: value.shape for name, value in expected.items()
    }
    session.optimizer_step()
    assert not list(session.full_gradients())  # they were cleared
    session.close()


@pytest.mark.usefixtures("alone")
def test_each_unit_is_wrapped_and_one_device_shards_nothing_without_a_warning() -> None:
    session = fsdp1.prepare(build("transformer"), alone_with())
    wrappers = FullyShardedDataParallel.fsdp_modules(session.module)  # type: ignore[attr-defined]
    assert len(wrappers) == 3  # two blocks and the root
    assert {one.sharding_strategy for one in wrappers} == {ShardingStrategy.NO_SHARD}
    session.close()


@pytest.mark.usefixtures("alone")
def test_own_mixed_precision_leaves_gradients_wide_and_batch_norms_alone() -> None:
    problem = normed_problem()
    where = alone_with(FSDP1Options(mixed_precision="bf16"), "bf16-amp")
    session = fsdp1.prepare(problem, where)
    loss = session.micro_step(next(problem.batches(0, 1)), sync=True, mark=lambda _: None)
    assert {gradient.dtype for _, gradient in session.full_gradients()} == {torch.float32}
    assert loss.dtype == torch.bfloat16
    # Every batch norm by itself, then the units without them; the root has nothing else.
    sizes = session.bucket_bytes()
    assert sizes is not None
    assert sorted(sizes) == [2 * 4 * 4, 2 * 8 * 4, 2 * 8 * 4, 36 * 4, 72 * 4]
    session.close()


def test_only_what_differs_from_torch_is_passed_on() -> None:
    assert fsdp1._arguments(context(2, options=FSDP1Options())) == {}
    asked = FSDP1Options(sharding_strategy="shard_grad_op", mixed_precision="bf16")
    found = fsdp1._arguments(context(2, options=asked, precision="bf16-amp"))
    assert found["sharding_strategy"] == ShardingStrategy.SHARD_GRAD_OP
    assert found["mixed_precision"].param_dtype == torch.bfloat16
    assert "mixed_precision" not in fsdp1._arguments(context(2, options=asked))  # a proof in fp64
