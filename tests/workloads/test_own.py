from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from workloads.base import Batch, Build, Problem, Workload
from workloads.own import workload, workload_of


def net(width: int = 4, depth: int = 2, *, extra: bool = False) -> tuple[Any, ...]:
    """A small net."""
    layers = [nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)) for _ in range(depth)]
    model = nn.Sequential(*layers)
    if extra:
        model.register_module("spare", nn.Identity())

    def batches(samples: int) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, width), torch.full((samples, width), np.random.rand())

    return model, nn.functional.mse_loss, batches


def built(made: Workload, options: dict[str, Any] | None = None, **changes: Any) -> Problem:
    settings: dict[str, Any] = {
        "device": torch.device("cpu"),
        "dtype": torch.float64,
        "seed": 0,
        "per_device_batch": 3,
        "optimizer": made.optimizer,
    }
    chosen = msgspec.convert(options or {}, made.options)
    return made.build(chosen, Build(**(settings | changes)))


def test_a_functions_arguments_are_the_options() -> None:
    made = workload_of(net, name="net.py:net")
    assert made.summary == "A small net."
    fields = {one.name: one.default for one in msgspec.structs.fields(made.options)}
    assert fields == {"width": 4, "depth": 2, "extra": False}
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        msgspec.convert({"width": "wide"}, made.options)
    assert len(list(built(made, {"depth": 5}).model.children())) == 5


def test_the_model_has_the_type_and_the_batches_too() -> None:
    problem = built(workload_of(net, name="net"))
    batch = next(problem.batches(0, 1))
    assert {one.dtype for one in problem.model.parameters()} == {torch.float64}
    assert batch.inputs[0].dtype == batch.targets.dtype == torch.float64
    loss = problem.loss(problem.model(*batch.inputs), batch)
    assert loss.ndim == 0


def test_batches_differ_by_shard_and_step_and_come_again_with_the_seed() -> None:
    def first(seed: int, shard: int) -> list[Batch]:
        problem = built(workload_of(net, name="net"), seed=seed)
        return list(itertools.islice(problem.batches(shard, 2), 3))

    state = str(np.random.get_state()), random.getstate()
    batches = [*first(0, 0), *first(0, 1), *first(1, 0)]
    for one, other in itertools.combinations(batches, 2):
        assert not torch.equal(one.inputs[0], other.inputs[0])
        assert not torch.equal(one.targets, other.targets)  # drawn by NumPy
    for one, again in zip(first(0, 1), first(0, 1), strict=True):
        assert torch.equal(one.inputs[0], again.inputs[0])
        assert torch.equal(one.targets, again.targets)
    assert str(np.random.get_state()) == state[0]
    assert random.getstate() == state[1]


def test_of_a_data_set_each_shard_has_samples_of_its_own() -> None:
    def make() -> tuple[Any, ...]:
        numbers = torch.arange(100.0).unsqueeze(1)
        return nn.Linear(1, 1), nn.functional.mse_loss, TensorDataset(numbers, numbers)

    problem = built(workload_of(make, name="data"))
    seen = [
        batch.targets.flatten().tolist()
        for shard in range(2)
        for batch in itertools.islice(problem.batches(shard, 2), 4)
    ]
    # Three samples a batch, two shards: 0-2, 6-8, ... and 3-5, 9-11, ...
    assert seen[0] == [0, 1, 2]
    assert seen[4] == [3, 4, 5]
    assert sorted(itertools.chain(*seen)) == list(range(24))


def test_facts_are_seen_on_the_model_without_its_content() -> None:
    def sparse(*, dense: bool = False) -> tuple[Any, ...]:
        model = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=not dense), nn.Linear(4, 4))
        model.append(nn.Identity())
        unused = nn.ModuleDict({"model": model, "spare": nn.Linear(2, 2)})

        def forward(ids: Tensor) -> Tensor:
            out: Tensor = model(ids)
            return out

        unused.forward = forward
        return (
            unused,
            lambda output, _: output.sum(),
            lambda samples: (torch.randint(10, (samples, 2)), torch.zeros(samples)),
        )

    made = workload_of(sparse, name="sparse")
    facts = made.facts(msgspec.convert({}, made.options))
    assert facts.has_sparse_gradients
    assert facts.has_unused_parameters
    assert not facts.has_batch_norm
    assert not facts.has_shard_units
    dense = made.facts(msgspec.convert({"dense": True}, made.options))
    assert not dense.has_sparse_gradients
    assert not dense.has_tied_parameters
    plain = workload_of(net, name="net")
    facts = plain.facts(msgspec.convert({}, plain.options))
    assert facts.has_batch_norm
    assert not facts.has_unused_parameters
    assert facts.gives_one_tensor


def test_a_parameter_that_is_used_twice_is_seen() -> None:
    def tied() -> tuple[Any, ...]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[1].weight = model[0].weight
        return model, MEAN, lambda n: (torch.ones(n, 2), torch.ones(n, 2))

    made = workload_of(tied, name="tied")
    assert made.facts(msgspec.convert({}, made.options)).has_tied_parameters


def test_a_model_that_looks_at_its_numbers_is_built_on_the_host() -> None:
    def looks() -> tuple[Any, ...]:
        rates = [one.item() for one in torch.linspace(0, 1, 3)]
        model = nn.Sequential(*(nn.Dropout(rate) for rate in rates), nn.Linear(2, 2))
        return model, nn.functional.mse_loss, lambda n: (torch.ones(n, 2), torch.ones(n, 2))

    made = workload_of(looks, name="looks")
    assert made.facts(msgspec.convert({}, made.options)).unit == "sample"


MEAN = nn.functional.mse_loss


@pytest.mark.parametrize(
    ("model", "loss", "batch", "expected"),
    [
        (nn.Linear(2, 2), MEAN, (2, 2), None),
        (nn.Linear(3, 2), MEAN, (2, 2), "RuntimeError: "),
        (nn.LSTM(2, 2), MEAN, (2, 2), "'tuple' object has no attribute"),
        (nn.Linear(2, 2), lambda a, b: a + b, (2, 2), "can be implicitly created only for scalar"),
        (nn.Linear(2, 2), lambda a, _: a.mean() * int(a.sum()), (2, 2), None),  # wants numbers
    ],
)
def test_a_step_that_fails_without_content_is_told(
    model: nn.Module, loss: Any, batch: tuple[int, int], expected: str | None
) -> None:
    def make() -> tuple[Any, ...]:
        return model, loss, lambda n: (torch.ones(n, batch[0]), torch.ones(n, batch[1]))

    made = workload_of(make, name="make")
    found = made.facts(msgspec.convert({}, made.options)).step_problem
    assert found is None if expected is None else expected in str(found)


def test_the_place_of_what_fails_is_told_with_it() -> None:
    def make() -> tuple[Any, ...]:
        return nn.Linear(2, 2), MEAN, lambda _: (torch.ones(7, 2), torch.ones(7, 2))

    made = workload_of(make, name="make")
    found = made.facts(msgspec.convert({}, made.options)).step_problem
    assert found is not None
    assert "a batch of 2 samples has a tensor of shape (7, 2)" in found

    class Broken(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
            return super().forward(input[:, :1])

    made = workload_of(
        lambda: (Broken(2, 2), MEAN, lambda n: (torch.ones(n, 2), torch.ones(n, 2))), name="made"
    )
    found = made.facts(msgspec.convert({}, made.options)).step_problem
    assert str(found).startswith("test_own.py, line ")


def test_a_decorator_says_more_and_leaves_the_function_as_it_is() -> None:
    @workload(
        per_device_batch=5,
        unit="token",
        units_per_sample=7,
        optimizer="sgd",
        presets={"small": {"depth": 1}, "large": {"depth": 9}},
    )
    def told(depth: int = 2) -> tuple[Any, ...]:
        return net(depth=depth)

    assert len(told(depth=3)) == 3
    made = workload_of(told, name="told")
    assert made.optimizer == "sgd"
    assert made.presets["large"].per_device_batch == 5
    assert made.default_presets == {"cpu": "small", "": "large"}
    options = made.presets["large"].options
    assert made.facts(options).units_per_sample == 7


def test_a_class_may_stand_in_place_of_a_function() -> None:
    class Net:
        def __init__(self, width: int = 3) -> None:
            self.model, self.loss, self.batches = net(width)

    made = workload_of(Net, name="Net")
    assert next(built(made).batches(0, 1)).inputs[0].shape == (3, 3)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (nn.Linear(1, 1), "must return .*, and returns a Linear alone"),
        ((nn.Linear(1, 1), None), "returns 2 things"),
        (None, "returns nothing without model, loss, batches"),
        ((1, len, len), "its model is a int"),
        ((nn.Linear(1, 1), 3, len), "its loss cannot be called"),
        ((nn.Linear(1, 1), len, 3), "its batches are a int"),
        (
            (nn.Linear(1, 1), len, (torch.ones(3, 1), torch.ones(3))),
            "its batches are a tuple of tensors, as one batch is, and must be a function",
        ),
    ],
)
def test_what_is_no_workload_says_so(returned: Any, expected: str) -> None:
    def make() -> Any:
        return returned

    made = workload_of(make, name="make")
    with pytest.raises(TypeError, match=expected):
        made.facts(msgspec.convert({}, made.options))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.ones(3, 1), "not Tensor"),
        ((torch.ones(3, 1),), "not 1 things"),
        (({"ids": 1}, torch.ones(3)), "inputs a tensor or a tuple of tensors"),
        ((torch.ones(2, 1), torch.ones(2)), r"a batch of 3 samples has a tensor of shape \(2, 1\)"),
    ],
)
def test_batches_that_are_none_say_so(batch: Any, expected: str) -> None:
    def make() -> tuple[Any, ...]:
        return nn.Linear(1, 1), nn.functional.mse_loss, lambda _: batch

    with pytest.raises((TypeError, ValueError), match=expected):
        next(built(workload_of(make, name="make")).batches(0, 1))


def test_an_argument_without_a_default_is_refused() -> None:
    def make(width: int) -> None:
        del width

    with pytest.raises(TypeError, match="the argument width of make has no default"):
        workload_of(make, name="make")


def test_a_proof_is_without_chance_and_a_measurement_with_it() -> None:
    def make() -> tuple[Any, ...]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        return model, nn.functional.mse_loss, lambda n: (torch.ones(n, 2), torch.ones(n, 2))

    made = workload_of(make, name="make")
    modes = [built(made, is_proof=proof).model[1].training for proof in (False, True)]  # type: ignore[index]
    assert modes == [True, False]
