"""Stand-ins for what ``torch.compile`` compiles with, and a model with little to compile.

Named in suites as ``tests.compilers:NAME``. torch looks for its backend when it first compiles
something, and finds here what is quicker; how it finds graphs and cuts them is left to it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch._inductor import compile_fx

from bench.strategies import ddp
from bench.strategies.base import Context, Session, Strategy
from bench.strategies.module_session import ModuleSession
from workloads.base import (
    Batch,
    Build,
    Facts,
    Options,
    Preset,
    Problem,
    Workload,
    cycle_of_batches,
)

SLOW_S = 4.0
"""What the last rank needs for a graph under ``SLOW``."""
LATE_STEP = 7
"""Optimizer step in which ``LATE`` compiles again: one for compiling, four quiet ones, and one of
warm-up lie before it, where that is all the warm-up that is asked for."""

Backend = Callable[[Any, Any], Any]


def _compiling(name: str, prepare: Callable[[Problem, Context], Session]) -> Strategy:
    (plain,) = ddp.STRATEGIES
    return dataclasses.replace(plain, name=name, prepare=prepare)


def _use(backend: Backend) -> None:
    compile_fx.compile_fx = lambda module, inputs, **_: backend(module, inputs)


def _prepare_quick(problem: Problem, context: Context) -> Session:
    _use(aot_eager)
    return ddp.prepare(problem, context)


def _prepare_slow(problem: Problem, context: Context) -> Session:
    def backend(module: Any, _: Any) -> Any:
        if context.rank == context.world_size - 1:
            time.sleep(SLOW_S)
        return module.forward

    _use(backend)
    return ddp.prepare(problem, context)


@dataclass(kw_only=True)
class _Late(ModuleSession):
    count: int = 0

    def optimizer_step(self) -> None:
        self.count += 1
        if self.count == LATE_STEP:
            torch.compile(lambda tensor: tensor + 1, backend="eager")(torch.zeros(1))
        super().optimizer_step()


def _prepare_late(problem: Problem, context: Context) -> Session:
    inner = _prepare_quick(problem, context)
    assert isinstance(inner, ModuleSession)
    fields = {one.name: getattr(inner, one.name) for one in dataclasses.fields(inner)}
    return _Late(**fields)


QUICK = _compiling("quick", _prepare_quick)
"""DDP whose graphs are found and cut as ever, and then run as they are."""
SLOW = _compiling("slow", _prepare_slow)
"""Likewise, on the last rank after a while."""
LATE = _compiling("late", _prepare_late)
"""Likewise, but something else is compiled in the window."""


class PerceptronOptions(Options, frozen=True, kw_only=True):
    """Two layers with a nonlinearity between them."""

    width: int = 8
    open: bool = True
    """Whether the compiler may look into the model."""


class Perceptron(nn.Module):
    """A class of its own: within DDP, a bare ``nn.Sequential`` would not be compiled."""

    def __init__(self, options: PerceptronOptions) -> None:
        super().__init__()
        self.is_open = options.open
        self.widen = nn.Linear(options.width, options.width)
        self.narrow = nn.Linear(options.width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.see(inputs) if self.is_open else self.hide(inputs)

    def see(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.narrow(nn.functional.gelu(self.widen(inputs)))
        return outputs

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def hide(self, inputs: Tensor) -> Tensor:
        return self.see(inputs)


def _build_perceptron(options: PerceptronOptions, build: Build) -> Problem:
    torch.manual_seed(build.seed)
    model = Perceptron(options).to(build.dtype)

    def make(generator: torch.Generator) -> Batch:
        inputs = torch.randn(build.per_device_batch, options.width, generator=generator)
        return Batch((inputs.to(build.dtype),), torch.zeros(build.per_device_batch))

    return Problem(
        model=model,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda output, _: output.square().mean(),
        batches=cycle_of_batches(make, build),
        shard_units=lambda _: [],
    )


PERCEPTRON = Workload(
    name="perceptron",
    summary="two layers",
    options=PerceptronOptions,
    presets={"tiny": Preset(options=PerceptronOptions(), per_device_batch=4, summary="all of it")},
    optimizer="sgd",
    facts=lambda _: Facts(unit="sample", has_shard_units=False),
    build=_build_perceptron,
)
