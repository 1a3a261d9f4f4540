from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from bench.measure import deviation
from bench.measure.reference import Reference, Tensors
from bench.run.verdict import Shown, apart
from bench.strategies.nature import Exactness, Rhythm

TRUE: Tensors = {
    "matrix": torch.arange(12, dtype=torch.float64).reshape(3, 4) ** 1.5 - 9,
    "bias": torch.tensor([3.0, -4.0], dtype=torch.float64),
}
MOST = 1 - 1e-6


def rank_one(matrix: torch.Tensor) -> torch.Tensor:
    left, size, right = torch.linalg.svd(matrix)
    return torch.outer(size[0] * left[:, 0], right[0])


def of(own: Tensors, tolerance: float = MOST) -> deviation.Deviation:
    return deviation.of_gradient(own.items(), TRUE, tolerance=tolerance)


def passes(found: deviation.Deviation) -> bool:
    return all(one.passed for one in found.comparisons)


def test_a_gradient_is_off_by_what_its_difference_is_to_its_size() -> None:
    own = {"matrix": TRUE["matrix"], "bias": torch.tensor([3.0, 0.0], dtype=torch.float64)}
    size = math.hypot(float(TRUE["matrix"].norm()), 5.0)
    assert of(own).error == pytest.approx(4.0 / size)
    assert of(TRUE).error == 0


def test_a_projection_passes_and_a_multiple_of_it_does_not() -> None:
    projected = TRUE | {"matrix": rank_one(TRUE["matrix"])}
    found = of(projected)
    assert passes(found)
    assert 0.05 < found.error < 1
    for factor in (0.5, 2.0):
        scaled = {name: tensor * factor for name, tensor in projected.items()}
        assert not passes(of(scaled))


def test_rounding_passes_and_half_a_gradient_does_not() -> None:
    rounded = {name: tensor.bfloat16().double() for name, tensor in TRUE.items()}
    assert passes(of(rounded, 0.1))
    assert not passes(of(rounded | {"bias": TRUE["bias"] / 2}, 0.1))


@pytest.mark.parametrize(
    "own",
    [
        {"matrix": TRUE["matrix"]},
        TRUE | {"bias": torch.zeros(2, dtype=torch.float64)},
        TRUE | {"bias": torch.tensor([3.0, math.nan], dtype=torch.float64)},
        TRUE | {"bias": torch.zeros(3, dtype=torch.float64)},
        {name: torch.zeros_like(tensor) for name, tensor in TRUE.items()},
    ],
)
def test_what_is_missing_or_no_number_never_passes(own: Tensors) -> None:
    assert not passes(of(own))


def test_a_way_is_compared_with_what_training_moved() -> None:
    reference = Reference(
        losses=[], first={}, final=TRUE, moved={"matrix": 3.0, "bias": 4.0}, native={}, spread={}
    )
    assert deviation.of_way(TRUE.items(), reference).error == 0
    off = TRUE | {"bias": TRUE["bias"] + torch.tensor([0.3, 0.4])}
    found = deviation.of_way(off.items(), reference)
    assert found.error == pytest.approx(0.5 / 5.0)
    assert passes(found)
    unmoved = TRUE | {"bias": TRUE["bias"] + torch.tensor([3.0, 4.0])}  # as far as the whole way
    assert not passes(deviation.of_way(unmoved.items(), reference))


def test_a_compressed_gradient_must_hold_numbers_in_low_precision_too() -> None:
    assert deviation.find_odd_numbers(TRUE.items()).passed
    broken = TRUE | {"bias": torch.tensor([math.inf, 1.0])}
    assert str(deviation.find_odd_numbers(broken.items())).startswith("gradient of bias, no number")


@pytest.mark.parametrize(
    ("kind", "divergence", "expected"),
    [
        ("exact", {3: 0.0}, []),
        ("exact", {3: 1e-3}, ["ranks ended with parameters up to 1.0e-03 apart"]),
        ("lossy", {5: 1e-3}, ["ranks ended with parameters up to 1.0e-03 apart"]),
        # Plain DDP in the first step; averages after the second, the fourth ...
        ("local", {1: 0.0, 2: 0.0, 3: 0.5, 4: 0.0}, []),
        ("local", {1: 0.5, 2: 0.0}, ["after 1 steps ranks are 5.0e-01 apart, and should be equal"]),
        ("local", {3: 0.0}, ["after 3 steps ranks are equal, and should train apart"]),
        ("local", {4: 1e-9}, ["after 4 steps ranks are 1.0e-09 apart, and should be equal"]),
    ],
)
def test_ranks_may_differ_only_between_synchronisations(
    kind: Literal["exact", "lossy", "local"], divergence: dict[int, float], expected: list[str]
) -> None:
    exactness = Exactness(kind=kind)
    shown = Shown(divergence=divergence)
    assert list(apart(shown, exactness, Rhythm(settle_steps=1, period=2))) == expected
