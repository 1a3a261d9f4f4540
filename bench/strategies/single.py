"""One device, no wrapper: the baseline of every speedup."""

from __future__ import annotations

from bench.strategies.base import Context, Session, Strategy, always
from bench.strategies.module_session import ModuleSession
from workloads.base import Problem


def prepare(problem: Problem, context: Context) -> Session:
    """The model as it is."""
    return ModuleSession(
        problem=problem,
        context=context,
        module=problem.model,
        optimizer=problem.make_optimizer(problem.model.parameters()),
    )


STRATEGIES = (
    Strategy(
        name="single",
        summary="one device, no wrapper: the baseline",
        processes="per_device",
        max_world_size=1,
        communicates=False,
        wraps=False,
        check=always,
        prepare=prepare,
    ),
)
