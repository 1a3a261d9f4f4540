"""The small tasks: that they can be learnt, and that devices share their samples out."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.workloads.test_workloads import build
from workloads.base import Batch, Build, Problem, Task, concatenate
from workloads.tasks import counting_tokens, hidden_rule, striped_images


def images(build: Build) -> Task:
    return striped_images(build, size=32, classes=10, layout=torch.channels_last)


def tokens(build: Build) -> Task:
    return counting_tokens(build, vocabulary=256, length=8)


def clicks(build: Build) -> Task:
    return hidden_rule(build, features=3, others=lambda _: ())


def taken(
    make: Callable[[Build], Task], per_device_batch: int, shard: int | None, shards: int, count: int
) -> list[Batch]:
    given = Build(
        device=torch.device("cpu"),
        dtype=torch.float32,
        seed=0,
        per_device_batch=per_device_batch,
        optimizer="sgd",
    )
    return list(itertools.islice(make(given).batches(shard, shards), count))


def same(one: Batch, other: Batch) -> bool:
    pairs = zip((*one.inputs, one.targets), (*other.inputs, other.targets), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("make", [images, tokens, clicks])
def test_as_many_samples_are_the_same_samples(make: Callable[[Build], Task]) -> None:
    (whole,) = taken(make, 4, 0, 1, 1)
    halves = [taken(make, 2, shard, 2, 1)[0] for shard in range(2)]
    assert same(concatenate(halves), whole)
    (together,) = taken(make, 2, None, 2, 1)
    assert same(together, whole)
    first, second = taken(make, 2, 0, 1, 2)
    assert same(concatenate([first, second]), whole)
    assert not torch.equal(first.inputs[0], second.inputs[0])  # none comes again


def test_batch_norm_sees_both_classes() -> None:
    (batch,) = taken(images, 2, 0, 1, 1)
    assert batch.targets.tolist() == [0, 1]
    assert batch.inputs[0].is_contiguous(memory_format=torch.channels_last)


def test_tokens_count_upwards() -> None:
    batches = taken(tokens, 8, 0, 1, 100)
    inputs = torch.cat([batch.inputs[0] for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert int(inputs.max()) == 15
    follows = (targets == (inputs + 1) % 16).double().mean().item()
    assert 0.85 < follows < 0.95  # one in ten jumps, and one in sixteen of these by one


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """More only wait for each other on matrices as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize(("name", "steps"), [("transformer", 70), ("embedding", 160)])
def test_a_tiny_model_learns_more_than_a_constant_prediction(name: str, steps: int) -> None:
    """That of ResNet-152 takes minutes: see ``tests/round_trips.py``."""
    losses = learnt(build(name), steps)
    task = build(name).task
    assert task is not None
    assert task.constant_loss is not None
    assert statistics.fmean(losses[:5]) > 0.95 * task.constant_loss
    assert statistics.fmean(losses[-20:]) < 0.6 * task.constant_loss


def learnt(problem: Problem, steps: int) -> list[float]:
    """The losses of plain training on the problem's task."""
    task = problem.task
    assert task is not None
    optimizer = problem.make_optimizer(problem.model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = task.lr or group["lr"]
    losses = []
    for batch in itertools.islice(task.batches(0, 1), steps):
        loss = problem.loss(problem.model(*batch.inputs), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
