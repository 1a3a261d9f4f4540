"""What a module of the user's own has for us: a workload or a strategy, by name or alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import nn

from bench.errors import BenchError, did_you_mean
from bench.plan.own import at_its_place, parts_of
from bench.strategies.base import Strategy
from workloads.base import Workload
from workloads.own import WANTED, Parts, workload_of


def workload_in(module: ModuleType, reference: str) -> Workload:
    """The workload that a reference means.

    Raises:
        BenchError: the module has none of that name, or not exactly one.
    """
    where, name = parts_of(reference)
    found = _named(module, where, name, workloads_in(module), "WORKLOADS")
    if isinstance(found, Workload):
        return found
    if isinstance(found, Strategy):
        raise BenchError("is a strategy, not a workload")
    if _is_model(found) or not callable(found):
        raise BenchError(
            f"is {'a model' if _is_model(found) else type(found).__name__}, not a Workload; "
            f"a function may be one too, which {WANTED}"
        )
    try:
        return workload_of(found, name=reference)
    except Exception as error:  # what it says of itself may be wrong in many ways
        raise BenchError(f"is no workload: {at_its_place(error)}") from error


def _is_model(item: Any) -> bool:
    return isinstance(item, nn.Module) or (isinstance(item, type) and issubclass(item, nn.Module))


def strategy_in(module: ModuleType, reference: str) -> Strategy:
    """The strategy that a reference means.

    Raises:
        BenchError: the module has none of that name, or not exactly one.
    """
    where, name = parts_of(reference)
    found = _named(module, where, name, strategies_in(module), "STRATEGIES")
    if not isinstance(found, Strategy):
        raise BenchError(f"is {type(found).__name__}, not a Strategy")
    return found


def workloads_in(module: ModuleType) -> dict[str, Any]:
    """What of a module can be meant by its name alone: workloads, else functions that make one."""
    exported = getattr(module, "WORKLOADS", None)
    if exported is not None:
        return {one.name: one for one in exported}
    written = {name: one for name, one in vars(module).items() if not name.startswith("_")}
    values = {name: one for name, one in written.items() if isinstance(one, Workload)}
    return values or {
        name: one
        for name, one in written.items()
        if getattr(one, "__module__", None) == module.__name__ and _may_make_one(one)
    }


def _may_make_one(item: Any) -> bool:
    if isinstance(item, type):  # with methods for what may be set in its constructor, too
        return not issubclass(item, nn.Module) and any(hasattr(item, one) for one in Parts._fields)
    return inspect.isfunction(item)


def strategies_in(module: ModuleType) -> dict[str, Strategy]:
    """The strategies that a module exports, by name."""
    exported = getattr(module, "STRATEGIES", None)
    if exported is not None:
        return {one.name: one for one in exported}
    return {name: one for name, one in vars(module).items() if isinstance(one, Strategy)}


def _nothing_in(module: ModuleType, where: str, exported: str) -> str:
    """What a file lacks, in words."""
    if exported == "STRATEGIES":
        return f"{where} has no Strategy; it may end with STRATEGIES = (...)"
    own = {
        name: one
        for name, one in vars(module).items()
        if getattr(one, "__module__", None) == module.__name__
    }
    models = [name for name, one in own.items() if _is_model(one)]
    has = f"{models[0]} is a model alone: " if models else ""
    return f"{has}{where} has no function that returns (model, loss, batches)"


def _named(
    module: ModuleType, where: str, name: str | None, known: Mapping[str, Any], exported: str
) -> Any:
    if name is None:
        if len(known) == 1:
            return next(iter(known.values()))
        if known:
            raise BenchError(
                f"cannot be told: {where} has several that it may be: {', '.join(known)}; "
                f"name one, as {where}:{next(iter(known))}, or export {exported} = (...)"
            )
        raise BenchError(f"cannot be found: {_nothing_in(module, where, exported)}")
    if name in known:
        return known[name]
    if hasattr(module, name):
        return getattr(module, name)
    raise BenchError(f"cannot be found: {where} has no '{name}'{did_you_mean(name, known)}")
