"""Strategies and workloads with one mistake each, as somebody might write them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, distributed, nn

from bench.strategies import fsdp
from bench.strategies.base import Context, Mark, Session, Strategy, always
from bench.strategies.module_session import ModuleSession
from workloads.base import Batch, Problem


class Mean(ModuleSession):
    """All-reduces each gradient by hand; right."""

    divide = True

    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        loss = super().micro_step(batch, sync=sync, mark=mark)
        for parameter in self.problem.model.parameters():
            if sync and parameter.grad is not None:
                distributed.all_reduce(parameter.grad)
                if self.divide:
                    parameter.grad /= self.context.world_size
        return loss


class Sum(Mean):
    divide = False


class Uncleared(Mean):
    def optimizer_step(self) -> None:
        self.optimizer.step()


class Unmarked(ModuleSession):
    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        return super().micro_step(batch, sync=sync, mark=lambda _: None)


class Forgetful(Mean):
    def put_state(self, state: dict[str, Any], *, whole: bool) -> None:
        """Restores nothing."""


class Bare:
    """A session with the methods that training needs, and no others."""

    def __init__(self, **parts: Any) -> None:
        self._inner = Mean(**parts)
        for name in (
            "micro_step", "optimizer_step", "full_gradients", "full_parameters", "named_buffers",
            "held_bytes", "held_addresses", "bucket_bytes", "skipped_steps", "close",
        ):  # fmt: skip
            setattr(self, name, getattr(self._inner, name))


def _strategy(kind: type[ModuleSession], **changes: Any) -> Strategy:
    def prepare(problem: Problem, context: Context) -> Session:
        return kind(
            problem=problem,
            context=context,
            module=problem.model,
            optimizer=problem.make_optimizer(problem.model.parameters()),
        )

    settings: dict[str, Any] = {
        "name": kind.__name__.lower(),
        "summary": "by hand",
        "processes": "per_device",
        "communicates": True,
        "can_skip_sync": True,
        "check": always,
        "prepare": prepare,
    }
    return Strategy(**(settings | changes))


def _early(problem: Problem, context: Context) -> Session:
    optimizer = problem.make_optimizer(problem.model.parameters())
    late = dataclasses.replace(problem, make_optimizer=lambda _: optimizer)
    return fsdp.prepare(late, dataclasses.replace(context, options=fsdp.FSDPOptions()))


def _raising(problem: Problem, context: Context) -> Session:
    del problem, context
    raise KeyError("no such thing")


MEAN = _strategy(Mean)
SUM = _strategy(Sum)
UNCLEARED = _strategy(Uncleared)
ALONE = _strategy(ModuleSession)
SILENT = _strategy(Mean, communicates=False)
FORGETFUL = _strategy(Forgetful)
BARE = _strategy(Bare)  # type: ignore[arg-type] # it is none
UNMARKED = _strategy(Unmarked)
EARLY = _strategy(Mean, prepare=_early)
RAISING = _strategy(Mean, prepare=_raising)


def summed(width: int = 2) -> tuple[Any, ...]:
    """A loss that is a sum."""
    loss = nn.MSELoss(reduction="sum")
    return nn.Linear(width, 1), loss, lambda n: (torch.randn(n, width), torch.randn(n, 1))


def good(width: int = 2) -> tuple[Any, ...]:
    """Nothing wrong."""
    model = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.5), nn.Linear(width, 1))
    return model, nn.MSELoss(), lambda n: (torch.randn(n, width), torch.randn(n, 1))
