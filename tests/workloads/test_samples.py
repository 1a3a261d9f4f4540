"""Samples one by one are of the kind that a workload's own batches are made of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from bench.plan.registry import find_workload
from tests.workloads.test_own import built
from workloads.base import Batch, Build, Images, Problem, Tokens, Workload
from workloads.own import workload_of
from workloads.own_tried import kind_of


def problem_of(workload: Workload, options: Any) -> Problem:
    build = Build(
        device=torch.device("cpu"),
        dtype=torch.float32,
        seed=0,
        per_device_batch=2,
        optimizer=workload.optimizer,
    )
    return workload.build(options, build)


def check_samples(workload: Workload, problem: Problem, options: Any) -> None:
    batch = next(problem.batches(0, 1))
    samples = problem.samples
    assert samples is not None
    loaded = default_collate([samples[0], samples[1]])
    for own, other in zip(
        (*batch.inputs, batch.targets), (*loaded.inputs, loaded.targets), strict=True
    ):
        assert (own[:2].shape, own.dtype) == (other.shape, other.dtype)
    first = samples[0].inputs[0]
    assert torch.equal(first, samples[0].inputs[0])
    assert not torch.equal(first, samples[1].inputs[0])
    tensors = (*loaded.inputs, loaded.targets)
    assert workload.facts(options).sample_bytes == sum(one.nbytes for one in tensors) // 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("transformer", Tokens(length=32, vocabulary=256)),
        ("embedding", None),
        ("torchvision:squeezenet1_1", Images(size=32, classes=1000)),
    ],
)
def test_samples_are_those_of_a_batch(name: str, kind: Images | Tokens | None) -> None:
    workload = find_workload(name)
    options = workload.presets["tiny"].options
    assert workload.facts(options).samples == kind
    check_samples(workload, problem_of(workload, options), options)


def small_net() -> Any:
    """Drawn pictures."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))

    def batches(samples: int) -> Any:
        return torch.randn(samples, 3, 8, 8), torch.randint(5, (samples,))

    return model, nn.functional.cross_entropy, batches


def of_a_set() -> Any:
    """Numbers of a data set."""
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6.0).view(6, 1))
    return nn.Linear(2, 1), nn.functional.mse_loss, data


def test_ones_own_function_says_by_its_batches_what_it_trains_on() -> None:
    workload = workload_of(small_net, name="own")
    options = workload.presets["default"].options
    facts = workload.facts(options)
    assert facts.samples == Images(size=8, classes=5)
    assert facts.sample_count is None
    check_samples(workload, problem_of(workload, options), options)


def test_a_data_set_is_loaded_as_it_is() -> None:
    workload = workload_of(of_a_set, name="set")
    facts = workload.facts(workload.presets["default"].options)
    assert (facts.samples, facts.sample_count, facts.sample_bytes) == (None, 6, 12)
    samples = built(workload).samples
    assert samples is not None
    assert [samples[number].targets.item() for number in range(6)] == list(range(6))


@pytest.mark.parametrize(
    ("inputs", "targets", "output", "kind"),
    [
        ((2, 3, 4, 4), (2,), (2, 7), Images(size=4, classes=7)),
        ((2, 1, 4, 4), (2,), (2, 7), None),
        ((2, 3, 4, 5), (2,), (2, 7), None),
        ((2, 3, 4, 4), (2, 4, 4), (2, 7, 4, 4), None),
    ],
)
def test_pictures_are_square_and_of_one_class(
    inputs: tuple[int, ...], targets: tuple[int, ...], output: tuple[int, ...], kind: Images | None
) -> None:
    batch = Batch((torch.zeros(inputs),), torch.zeros(targets, dtype=torch.int64))
    assert kind_of(batch, torch.zeros(output)) == kind
    assert kind_of(batch, (torch.zeros(output),)) is None
    floats = Batch(batch.inputs, torch.zeros(targets))
    assert kind_of(floats, torch.zeros(output)) is None


def test_tokens_have_a_target_each() -> None:
    row = torch.zeros(2, 6, dtype=torch.int64)
    assert kind_of(Batch((row,), row), torch.zeros(2, 6, 9)) == Tokens(length=6, vocabulary=9)
    assert kind_of(Batch((row,), row[:, 0]), torch.zeros(2, 9)) is None
    assert kind_of(Batch((row, row), row), torch.zeros(2, 6, 9)) is None
