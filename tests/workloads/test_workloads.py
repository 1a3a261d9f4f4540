from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
import torch

from bench.plan.registry import all_workloads, split_reference
from workloads.base import Batch, Build, Problem, concatenate, shard_seed
from workloads.transformer import Transformer, TransformerOptions


def build(name: str, preset: str = "tiny", **changes: Any) -> Problem:
    workload = all_workloads()[name]
    options = workload.presets[preset].options
    settings: dict[str, Any] = {
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "seed": 0,
        "per_device_batch": 2,
        "optimizer": workload.optimizer,
    }
    return workload.build(options, Build(**(settings | changes)))


def parameters(problem: Problem) -> int:
    return sum(parameter.numel() for parameter in problem.model.parameters())


@pytest.mark.parametrize("name", all_workloads())
def test_a_workload_trains_in_other_types(name: str) -> None:
    for dtype in (torch.float64, torch.bfloat16):  # runs of all kinds train in fp32
        problem = build(name, dtype=dtype)
        batch = next(problem.batches(0, 1))
        assert len(batch.targets) == 2
        optimizer = problem.make_optimizer(problem.model.parameters())
        before = [parameter.detach().clone() for parameter in problem.model.parameters()]
        loss = problem.loss(problem.model(*batch.inputs), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert loss.isfinite()
        changed = [
            not torch.equal(old, new)
            for old, new in zip(before, problem.model.parameters(), strict=True)
        ]
        assert sum(changed) > len(changed) / 2  # bf16 rounds small changes of norms away


@pytest.mark.parametrize("name", all_workloads())
def test_data_differ_between_shards_and_steps_and_come_again_with_the_seed(name: str) -> None:
    def first(seed: int, shard: int) -> list[Batch]:
        problem = build(name, seed=seed)
        return list(itertools.islice(problem.batches(shard, 2), 3))

    batches = [*first(0, 0), *first(0, 1), *first(1, 0)]
    for one, other in itertools.combinations(batches, 2):
        assert not torch.equal(one.inputs[0], other.inputs[0])
    for one, again in zip(first(0, 1), first(0, 1), strict=True):
        assert torch.equal(one.inputs[0], again.inputs[0])
        assert torch.equal(one.targets, again.targets)


@pytest.mark.parametrize("name", all_workloads())
def test_the_seed_sets_the_parameters(name: str) -> None:
    models = [build(name, seed=seed).model for seed in (0, 0, 1)]
    weights = [next(iter(model.parameters())) for model in models]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("name", all_workloads())
def test_shard_units_lie_within_the_model(name: str) -> None:
    problem = build(name)
    units = problem.shard_units(problem.model)
    assert len(units) > 1
    assert set(units) <= set(problem.model.modules())


def test_resnet152_has_its_published_size() -> None:
    # He et al. and torchvision: 60,192,808 parameters with 1000 classes.
    assert parameters(build("resnet152")) == 60_192_808
    assert all_workloads()["resnet152"].presets["full"].per_device_batch == 64


def test_the_full_transformer_is_gpt2() -> None:
    workload = all_workloads()["transformer"]
    options = workload.presets["full"].options
    with torch.device("meta"):
        assert isinstance(options, TransformerOptions)
        model = Transformer(options)
    # GPT-2 small: 124,439,808 with the tied output layer counted once.
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808
    assert model.head.weight is model.tokens.weight


def test_untied_embeddings_are_two_weights() -> None:
    workload = all_workloads()["transformer"]
    options = msgspec.structs.replace(workload.presets["tiny"].options, tie_embeddings=False)
    problem = workload.build(
        options,
        Build(
            device=torch.device("cpu"),
            dtype=torch.float32,
            seed=0,
            per_device_batch=1,
            optimizer="sgd",
        ),
    )
    assert parameters(problem) == parameters(build("transformer")) + 256 * 64


def test_the_transformer_looks_only_back() -> None:
    problem = build("transformer")
    tokens = torch.arange(32).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 20] = 200
    with torch.no_grad():
        before, after = problem.model(tokens), problem.model(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_whole_batches_hold_all_shards_in_order() -> None:
    problem = build("transformer")
    whole = next(problem.batches(None, 3))
    parts = [next(problem.batches(shard, 3)) for shard in range(3)]
    assert torch.equal(whole.targets, torch.cat([part.targets for part in parts]))
    assert concatenate(parts).inputs[0].shape == whole.inputs[0].shape


def test_seeds_of_shards_are_apart() -> None:
    seeds = {shard_seed(seed, shard) for seed in range(50) for shard in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("resnet152", ("resnet152", None)),
        ("resnet152:tiny", ("resnet152", "tiny")),
        ("my.models:VIT", ("my.models:VIT", None)),
        ("my.models:VIT:small", ("my.models:VIT", "small")),
    ],
)
def test_references(reference: str, expected: tuple[str, str | None]) -> None:
    assert split_reference(reference) == expected


def test_an_unused_branch_gets_no_gradient_and_leaves_the_rest_as_it_is() -> None:
    workload = all_workloads()["transformer"]
    plain = workload.presets["tiny"].options
    branched = msgspec.structs.replace(plain, unused_branch=True)
    assert not workload.facts(plain).has_unused_parameters
    assert workload.facts(branched).has_unused_parameters
    build_ = Build(
        device=torch.device("cpu"), dtype=torch.float32, seed=0, per_device_batch=2, optimizer="sgd"
    )
    problem = workload.build(branched, build_)
    batch = next(problem.batches(0, 1))
    problem.loss(problem.model(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
    unused = {name for name, one in problem.model.named_parameters() if one.grad is None}
    assert unused == {name for name, _ in problem.model.named_parameters() if "spare" in name}
    assert len(unused) > 5
    values = dict(problem.model.named_parameters())
    for name, parameter in workload.build(plain, build_).model.named_parameters():
        assert torch.equal(parameter, values[name])
