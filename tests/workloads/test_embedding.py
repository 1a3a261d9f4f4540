from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
import torch

from bench.plan.registry import all_workloads
from workloads.base import Build, Problem
from workloads.embedding import EmbeddingOptions, Recommender, skewed_rows


def build(**changes: Any) -> Problem:
    workload = all_workloads()["embedding"]
    options = msgspec.structs.replace(workload.presets["tiny"].options, **changes)
    settings = Build(
        device=torch.device("cpu"), dtype=torch.float32, seed=0, per_device_batch=4, optimizer="sgd"
    )
    return workload.build(options, settings)


def draw(skew: float, rows: int, count: int = 200_000) -> Counter[int]:
    options = EmbeddingOptions(rows=rows, skew=skew)
    return Counter(skewed_rows((count,), options, torch.Generator().manual_seed(0)).tolist())


def test_few_rows_take_most_lookups() -> None:
    counts = draw(1.05, 1000)
    most = [count for _, count in counts.most_common(100)]
    assert sum(most) > 0.5 * counts.total()  # a tenth of the rows
    assert len(counts) > 900  # and nearly all are seen


def test_the_frequencies_fall_with_the_skew_asked_for() -> None:
    counts = [count for _, count in draw(1.0, 1000).most_common()]
    # Zipf's law with exponent 1: rank 10 comes up a tenth as often as rank 1, within rounding.
    assert counts[99] / counts[9] == pytest.approx(0.1, rel=0.25)


def test_without_skew_all_rows_are_alike() -> None:
    counts = draw(0.0, 50)
    assert max(counts.values()) < 1.2 * min(counts.values())


@pytest.mark.parametrize("rows", [1, 2, 1_000_003, 2_000_006])
def test_every_row_id_exists(rows: int) -> None:
    counts = draw(1.05, rows, count=10_000)
    assert min(counts) >= 0
    assert max(counts) < rows


def test_popular_rows_are_strewn_over_the_table() -> None:
    popular = [row for row, _ in draw(1.05, 100_000).most_common(10)]
    assert max(popular) - min(popular) > 10_000


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_are_dense_or_sparse_by_option(sparse: bool) -> None:
    problem = build(sparse=sparse)
    batch = next(problem.batches(0, 1))
    problem.loss(problem.model(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
    assert isinstance(problem.model, Recommender)
    gradients = [table.grad for table in problem.model.tables.parameters()]
    assert all(gradient is not None and gradient.is_sparse is sparse for gradient in gradients)


def test_sparse_and_dense_gradients_train_the_same_model() -> None:
    models = []
    for sparse in (False, True):
        problem = build(sparse=sparse)
        optimizer = problem.make_optimizer(problem.model.parameters())
        batches = problem.batches(0, 1)
        for _ in range(3):
            batch = next(batches)
            problem.loss(problem.model(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        models.append(problem.model)
    for dense, sparse_one in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(dense, sparse_one)


def test_the_full_preset_is_dominated_by_its_tables() -> None:
    options = all_workloads()["embedding"].presets["full"].options
    assert isinstance(options, EmbeddingOptions)
    with torch.device("meta"):
        model = Recommender(options)
    in_tables = sum(parameter.numel() for parameter in model.tables.parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    assert in_tables == 26 * 200_000 * 128
    assert in_tables > 0.99 * total


@pytest.mark.parametrize("wrong", [{"tables": 0}, {"skew": -1.0}, {"lookups": 0}])
def test_impossible_sizes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EmbeddingOptions(**wrong)
