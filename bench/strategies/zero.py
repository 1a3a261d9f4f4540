"""``ZeroRedundancyOptimizer`` over DDP: the optimizer's state sharded (ZeRO stage 1), nothing else.

Gradients are all-reduced as in DDP. Each rank then updates the parameters that are its own share,
and broadcasts them. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", 2020.

``overlap_with_ddp`` is left out: torch refuses it over gloo, and elsewhere drops the updates of the
first steps, while DDP rebuilds its buckets, so that it trains another model.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from bench.plan.case import Case, Machine
from bench.strategies import ddp, saving
from bench.strategies.base import Context, Options, Session, Strategy
from bench.strategies.ddp_options import DDPOptions
from bench.strategies.module_session import ModuleSession
from bench.strategies.saving import State
from workloads.base import Facts, Problem


class ZeroOptions(Options, frozen=True, kw_only=True):
    """Settings of ``zero``. A default is not passed to torch at all."""

    parameters_as_bucket_view: bool = False
    """Lay the parameters that a rank updates into one tensor, and broadcast that, not each of them.
    Helps where parameters are many and small. Costs a second copy of all parameters while the
    optimizer is built."""


def check(facts: Facts, case: Case, machine: Machine) -> str | None:
    """Whether DDP, which it stands on, can carry the workload."""
    del machine
    if facts.has_sparse_gradients and case.backend == "nccl":
        return "NCCL cannot all-reduce sparse gradients; use dense ones, or backend gloo"
    if facts.has_unused_parameters:
        return (
            "DDP, which it stands on, waits for gradients that never come: some parameters are "
            "unused; use ddp with find_unused_parameters"
        )
    return None


def flags(facts: Facts, case: Case) -> list[str]:
    """That one device shards nothing, and that a scaler finds fused kernels no help here."""
    del facts
    found = ["no_sharding"] if case.world_size == 1 else []
    scaled = case.precision == "fp16-amp" and case.device != "cpu"
    if scaled and case.optimizer_kernels == "fused":  # with others, it waits everywhere
        found.append("scaler_syncs")
    return found


def prepare(problem: Problem, context: Context) -> Session:
    """DDP with another optimizer."""
    options: ZeroOptions = context.options

    def make_optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return shard_optimizer(problem.make_optimizer(parameters), **options.changed())

    session = ddp.prepare(
        dataclasses.replace(problem, make_optimizer=make_optimizer),
        dataclasses.replace(context, options=DDPOptions()),
    )
    assert isinstance(session, ModuleSession)
    assert isinstance(session.optimizer, ZeroRedundancyOptimizer)
    parts = {one.name: getattr(session, one.name) for one in dataclasses.fields(session)}
    return ZeroSession(**parts | {"state_keeper": session.optimizer.optim, "steps_together": True})


class ZeroSession(ModuleSession):
    """Session whose optimizer broadcasts what each rank has updated, when all take a step.

    Its state must be gathered on one rank before it can be saved.
    """

    def take_state(self, *, whole: bool, with_optimizer: bool) -> State:
        """See ``SavedSession``; always whole, and gathered tensor by tensor."""
        assert whole, "its parameters are whole on every rank"
        state = saving.take(self.saved_module(), None, whole=True)
        if with_optimizer:
            optimizer = self._optimizer()
            optimizer.consolidate_state_dict(to=0)
            if state:
                state["optimizer"] = saving.by_name(optimizer.state_dict(), self._names())
        return self.with_loss_scale(state)

    def put_state(self, state: State, *, whole: bool) -> None:
        """See ``SavedSession``; each rank keeps its share of the optimizer's state."""
        saving.put(self.saved_module(), None, state, whole=whole)
        if "optimizer" in state:
            numbered = saving.by_number(state["optimizer"], self._names())
            self._optimizer().load_state_dict(numbered)
        self.put_loss_scale(state)

    def _optimizer(self) -> ZeroRedundancyOptimizer:
        assert isinstance(self.optimizer, ZeroRedundancyOptimizer)
        return self.optimizer

    def _names(self) -> list[str]:
        """Of all parameters, in the order of the optimizer's groups."""
        names = {one: name for name, one in self.saved_module().named_parameters()}
        return [names[one] for group in self.optimizer.param_groups for one in group["params"]]


def shard_optimizer(whole: Optimizer, **options: Any) -> ZeroRedundancyOptimizer:
    """The same optimizer, each rank with its share of the parameters; collective.

    Args:
        whole: freshly made over all parameters. Its class is made again for the share, and every
            setting goes along: those that its constructor takes, and all of each group.
        options: of ``ZeroRedundancyOptimizer``.
    """
    kind = type(whole)
    taken = inspect.signature(kind).parameters
    settings = {name: value for name, value in whole.defaults.items() if name in taken}
    return ZeroRedundancyOptimizer(whole.param_groups, optimizer_class=kind, **options, **settings)


STRATEGIES = (
    Strategy(
        name="zero",
        summary="ZeroRedundancyOptimizer over DDP: the optimizer's state sharded (ZeRO stage 1)",
        processes="per_device",
        communicates=True,
        can_skip_sync=True,
        only_shards="optimizer_state",
        options=ZeroOptions,
        flags=flags,
        check=check,
        prepare=prepare,
    ),
)
