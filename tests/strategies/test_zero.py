from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.optim import Optimizer

from bench.strategies import zero
from tests.fakes import make_case, world_of_one
from tests.run.test_outcome import outcome, record_of


@pytest.fixture
def _alone() -> Iterator[None]:
    world_of_one()
    yield
    distributed.destroy_process_group()


class Demanding(torch.optim.SGD):
    """A user's own: its first setting has no default, and another has no argument."""

    def __init__(self, params: Any, rate: float) -> None:
        super().__init__(params, lr=rate, momentum=0.5)
        self.defaults["rate"] = rate


def in_two_groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": parameters[:1], "weight_decay": 0.5}, {"params": parameters[1:]}]


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    "make",
    [
        lambda ps: torch.optim.AdamW(ps, lr=0.3, betas=(0.5, 0.7), weight_decay=0.1),
        lambda ps: torch.optim.SGD(ps, lr=0.3, momentum=0.9, nesterov=True, foreach=False),
        lambda ps: torch.optim.SGD(in_two_groups(ps), lr=0.1),
        lambda ps: Demanding(ps, 0.25),
    ],
)
def test_the_sharded_optimizer_is_the_problems_own(make: Callable[[Any], Optimizer]) -> None:
    model = nn.Linear(3, 2)
    whole = make(list(model.parameters()))
    settings = [
        {name: value for name, value in group.items() if name != "params"}
        for group in whole.param_groups
    ]
    sharded = zero.shard_optimizer(whole, parameters_as_bucket_view=True)
    assert type(sharded.optim) is type(whole)
    assert len(sharded.optim.param_groups) == len(settings)
    for group, expected in zip(sharded.optim.param_groups, settings, strict=True):
        assert {name: group[name] for name in expected} == expected


@pytest.mark.parametrize(("strategy", "flagged"), [("zero", True), ("ddp", False)])
def test_an_optimizer_without_state_has_nothing_to_shard(strategy: str, flagged: bool) -> None:
    for state, is_empty in ((0, True), (8, False)):
        held = [{"parameters": 100, "optimizer_state": state}]
        record = record_of(
            *(outcome(rank, held=held) for rank in range(2)),
            case=make_case(strategy=strategy, world_size=2),
        )
        assert ("nothing_to_shard" in record.flags) == (flagged and is_empty)
