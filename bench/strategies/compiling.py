"""``torch.compile`` laid around a strategy: on the model, its blocks, or the wrapper.

Always in place (``nn.Module.compile``), so that classes and the names of parameters stay. Nothing
is compiled here: that begins in the first step.
"""

from __future__ import annotations

from torch import nn

from bench.strategies.base import Context, Session
from bench.strategies.module_session import ModuleSession
from workloads.base import Problem


def compile_within(problem: Problem, context: Context) -> None:
    """Before wrapping: have the model, or each of its blocks, compiled.

    Raises:
        ValueError: there are no blocks.
    """
    if context.compile == "none" or context.compile_scope == "outside":
        return
    if context.compile_scope == "inside":
        _compile(problem.model, context)
        return
    units = problem.shard_units(problem.model)
    if not units:
        raise ValueError(
            "compile_scope: blocks has nothing to compile, since the workload's shard_units gives"
            " none; let it give the model's blocks, or set has_shard_units=False among its facts"
        )
    for unit in units:
        _compile(unit, context)


def compile_around(session: Session, context: Context) -> None:
    """After wrapping: have the wrapper compiled, and the model with it.

    Raises:
        TypeError: the session has no module that forward is called on.
    """
    if context.compile == "none" or context.compile_scope != "outside":
        return
    if not isinstance(session, ModuleSession):
        raise TypeError(
            f"a {type(session).__name__} has no module to compile from outside; use compile_scope:"
            " inside"
        )
    _compile(session.module, context)


def _compile(module: nn.Module, context: Context) -> None:
    """A default mode is not passed to torch at all."""
    if context.compile == "default":
        module.compile()
    else:
        module.compile(mode=context.compile)


def cannot_split(bucket_bytes: int) -> str | None:
    """Why torch's compiler does not take DDP with buckets of that size; None where it does.

    It cuts the graph of a model within DDP where buckets end, and is asked here whether it would.
    """
    try:
        from torch._dynamo.backends.distributed import DDPOptimizer  # noqa: PLC0415 - for few cases
        from torch._dynamo.utils import get_optimize_ddp_mode  # noqa: PLC0415
    except ImportError:  # a torch that does it in another way, which a run will show
        return None
    if get_optimize_ddp_mode() != "ddp_optimizer":
        return None
    try:
        DDPOptimizer(
            bucket_bytes_cap=bucket_bytes, backend_compile_fn=lambda module, _: module.forward
        )
    except AssertionError:
        return (
            "torch cuts a compiled model where DDP's buckets end, and refuses buckets smaller than"
            " the first of its own default, 1 MiB; use caps of 1 MiB or more"
        )
    return None
