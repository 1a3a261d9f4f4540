"""Find the workloads and strategies: each file of their folder exports a tuple of them.

A user's own is named ``package.module:NAME`` and gets the same rights. Importing it runs its code.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from types import ModuleType
from typing import TypeVar

import bench.strategies
import workloads
from bench.errors import BenchError, did_you_mean
from bench.strategies.base import Strategy
from workloads.base import Workload

OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+:[^\W\d]\w*")
"""``package.module:NAME``."""

Kind = TypeVar("Kind", Workload, Strategy)


@functools.cache
def all_workloads() -> dict[str, Workload]:
    """Every shipped workload by name, in the order of their files."""
    return _discover(workloads, "WORKLOADS", Workload)


@functools.cache
def all_strategies() -> dict[str, Strategy]:
    """Every shipped strategy by name, in the order of their files."""
    return _discover(bench.strategies, "STRATEGIES", Strategy)


@functools.cache
def find_workload(name: str) -> Workload:
    """A workload by name or by ``package.module:NAME``.

    Raises:
        BenchError: there is none of that name; says which there are.
    """
    return _find(name, all_workloads(), Workload, "workload")


@functools.cache
def find_strategy(name: str) -> Strategy:
    """A strategy by name or by ``package.module:NAME``.

    Raises:
        BenchError: there is none of that name; says which there are.
    """
    return _find(name, all_strategies(), Strategy, "strategy")


def split_reference(reference: str) -> tuple[str, str | None]:
    """Take a ``name`` or ``package.module:NAME`` apart from the ``:preset`` that may follow it.

    >>> split_reference("resnet152:tiny")
    ('resnet152', 'tiny')
    >>> split_reference("my.models:VIT:small")
    ('my.models:VIT', 'small')
    """
    parts = reference.split(":")
    if "." in parts[0] and len(parts) > 1:
        return ":".join(parts[:2]), ":".join(parts[2:]) or None
    return parts[0], ":".join(parts[1:]) or None


def _discover(package: ModuleType, attribute: str, kind: type[Kind]) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for item in getattr(module, attribute, ()):
            assert isinstance(item, kind), f"{module.__name__}.{attribute} holds {item!r}"
            assert item.name not in found, f"{item.name} is exported twice"
            found[item.name] = item
    return found


def _find(name: str, known: dict[str, Kind], kind: type[Kind], noun: str) -> Kind:
    if name in known:
        return known[name]
    if not OWN.fullmatch(name):
        raise BenchError(
            f"unknown {noun} '{name}'{did_you_mean(name, known)}; your own is package.module:NAME"
        )
    module_name, _, attribute = name.partition(":")
    try:
        item = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is run
        raise BenchError(
            f"{noun} '{name}' cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(item, kind):
        raise BenchError(f"'{name}' is {type(item).__name__}, not a {kind.__name__}")
    return item
