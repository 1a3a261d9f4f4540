from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.base import Batch
from workloads.quiet import drawn, quieten


class Functional(nn.Module):
    """Dropout by a function, as many models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.linear(self.norm(inputs))
        return functional.dropout(hidden, 0.5, self.training)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.linear(inputs + torch.randn_like(inputs))
        return out


def loss(output: Tensor, batch: Batch) -> Tensor:
    return functional.mse_loss(output, batch.targets)


def batch() -> Batch:
    return Batch((torch.ones(3, 4),), torch.zeros(3, 4))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3)),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True),
        nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.3)),
    ],
    ids=["dropout", "attention", "alpha"],
)
def test_modules_that_leave_something_out_are_silenced_and_the_rest_trains(
    model: nn.Module,
) -> None:
    def batch() -> Batch:
        return Batch((torch.ones(3, 2, 4),), torch.zeros(3, 2, 4))

    assert drawn(model, loss, batch)
    quieten(model, loss, batch)
    assert not drawn(model, loss, batch)
    assert model.training
    torch.manual_seed(0)
    first = model(*batch().inputs)
    torch.manual_seed(1)
    assert torch.equal(first, model(*batch().inputs))


def test_a_model_that_calls_dropout_is_evaluated_but_for_its_norms() -> None:
    model = Functional()
    quieten(model, loss, batch)
    assert not drawn(model, loss, batch)
    assert model.norm.training
    assert not model.linear.training


def test_a_model_that_draws_in_any_mode_cannot_be_proved() -> None:
    with pytest.raises(ValueError, match=r"draws random numbers in every forward \(aten"):
        quieten(Noisy(), loss, batch)


def test_dropout_of_nothing_is_no_chance() -> None:
    assert not drawn(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)), loss, batch)
