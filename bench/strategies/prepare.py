"""A case's session: its strategy's, with what a suite may ask of every strategy laid around it."""

from __future__ import annotations

from bench.strategies.base import Context, Session, Strategy
from workloads.base import Problem


def prepare(strategy: Strategy, problem: Problem, context: Context) -> Session:
    """The one way from a problem to what the loop drives, for every pass.

    Args:
        strategy: wraps the model.
        problem: freshly built; its model is changed in place.
        context: says what else is asked for.
    """
    return strategy.prepare(problem, context)
