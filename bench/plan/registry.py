"""Find the workloads and strategies: each file of their folder exports a tuple of them.

A user's own is named ``path/to/file.py:NAME`` or ``package.module:NAME`` and gets the same rights.
Importing it runs its code. A family names many workloads of one library, as ``torchvision:NAME``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

import bench.strategies
import workloads
from bench.errors import BenchError, did_you_mean
from bench.plan import own
from bench.plan.exported import strategy_in, workload_in
from bench.plan.own import Code
from bench.strategies.base import Strategy
from workloads import data
from workloads.base import Family, Workload
from workloads.data.base import Source

Kind = TypeVar("Kind", Workload, Strategy, Family, Source)


@functools.cache
def all_workloads() -> dict[str, Workload]:
    """Every shipped workload by name, in the order of their files."""
    return _discover(workloads, "WORKLOADS", Workload)


@functools.cache
def all_strategies() -> dict[str, Strategy]:
    """Every shipped strategy by name, in the order of their files."""
    return _discover(bench.strategies, "STRATEGIES", Strategy)


@functools.cache
def all_families() -> dict[str, Family]:
    """Every family of workloads by name."""
    return _discover(workloads, "FAMILIES", Family)


@functools.cache
def all_sources() -> dict[str, Source]:
    """Every source of batches by name, in the order of their files."""
    return _discover(data, "SOURCES", Source)


def find_source(name: str) -> Source:
    """A source of batches by name.

    Raises:
        BenchError: there is none of that name; says which there are.
    """
    known = all_sources()
    if name not in known:
        raise BenchError(f"unknown data source '{name}'{did_you_mean(name, known)}")
    return known[name]


def find_workload(name: str) -> Workload:
    """A workload by name, of a family, or of the user's own by reference.

    Raises:
        BenchError: there is none of that name; says which there are.
    """
    known, families = all_workloads(), all_families()
    if name in known:
        return known[name]
    family, _, member = name.partition(":")
    if family in families:
        return _member(families[family], member)
    if not own.is_own(name):
        raise _unknown("workload", name, [*known, *(f"{one}:NAME" for one in families)])
    with _naming("workload", name):
        return _own_workload(name, own.code_of(name))


def find_strategy(name: str) -> Strategy:
    """A strategy by name, or of the user's own by reference.

    Raises:
        BenchError: there is none of that name; says which there are.
    """
    known = all_strategies()
    if name in known:
        return known[name]
    if not own.is_own(name):
        raise _unknown("strategy", name, [*known])
    with _naming("strategy", name):
        return _own_strategy(name, own.code_of(name))


@contextlib.contextmanager
def _naming(noun: str, name: str) -> Iterator[None]:
    """Say of whose code it is what is wrong with it."""
    try:
        yield
    except BenchError as error:
        raise BenchError(f"{noun} '{name}' {error}") from error


@functools.cache
def _own_workload(reference: str, code: Code) -> Workload:
    return workload_in(own.load(code), reference)


@functools.cache
def _own_strategy(reference: str, code: Code) -> Strategy:
    return strategy_in(own.load(code), reference)


@functools.cache
def _member(family: Family, name: str) -> Workload:
    try:
        names = family.names()
    except ImportError as error:
        raise BenchError(f"workloads of {family.name} need a library: {error}") from error
    if name not in names:
        raise BenchError(f"{family.name} has no workload '{name}'{did_you_mean(name, names)}")
    return family.make(name)


def _unknown(noun: str, name: str, known: list[str]) -> BenchError:
    return BenchError(f"unknown {noun} '{name}'{did_you_mean(name, known)}; your own is {own.FORM}")


def split_reference(reference: str) -> tuple[str, str | None]:
    """Take a name, or a reference to one's own, apart from the ``:preset`` that may follow it.

    >>> split_reference("resnet152:tiny")
    ('resnet152', 'tiny')
    >>> split_reference("my.models:VIT:small")
    ('my.models:VIT', 'small')
    >>> split_reference("models/vit.py::small")
    ('models/vit.py', 'small')
    """
    parts = reference.split(":")
    if len(parts) > 1 and ("." in parts[0] or parts[0] in all_families()):
        return ":".join(parts[:2]).rstrip(":"), ":".join(parts[2:]) or None
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
