"""Suite x machine -> ordered cases, each with a reason if it will not run.

What can only be a mistake of the suite (an unknown name, a global batch that does not divide) is
an error before anything starts. What this machine lacks becomes a skip, and so a row.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.errors import BenchError, SuiteError
from bench.plan import own
from bench.plan.block import BlockPlanner, kept
from bench.plan.case import Case, Effort, Machine, PlannedCase
from bench.plan.filter import Known, matching
from bench.plan.registry import (
    all_sources,
    all_strategies,
    all_workloads,
    find_strategy,
    find_workload,
    split_reference,
)
from bench.plan.suite import Block, Suite

MAX_CASES = 100_000
"""Of a suite, before filters: more would take months to run, and memory to plan."""

Found = TypeVar("Found")


def expand(
    suite: Suite, machine: Machine, *, only: str | None = None, launches: int | None = None
) -> tuple[PlannedCase, ...]:
    """All cases of a suite in its own order, each once.

    Args:
        suite: what to run.
        machine: what it would run on.
        only: filter expression that cases must match, beside the blocks' own.
        launches: in place of every case's own number, and no more than these.

    Raises:
        SuiteError: the suite asks for something that exists nowhere.
        FilterError: ``only`` cannot be read.
        BenchError: nothing is left to run.
    """
    _locate_own(suite)
    known = _known_options(suite)
    planners = [BlockPlanner(suite, block, machine, known) for block in suite.blocks]
    _check_size(suite, planners)
    wanted = matching(only, known)
    planned: dict[str, PlannedCase] = {}
    empty: list[str] = []
    for planner in planners:
        block = planner.block
        candidates = tuple(planner.expand())
        if not candidates:  # on another machine it may match, so that it is no mistake
            empty.append(block.path)
        # A twin goes with its original: alone it shows nothing.
        for candidate in kept(candidates, lambda one: wanted(_without_twin(one.case))):
            first = planned.setdefault(candidate.case.id, candidate)
            if candidate.rung_below is not None:
                planned[candidate.case.id] = _climbed(first, candidate, suite, block)
            if first.effort != candidate.effort:
                raise SuiteError(
                    f"plans {candidate.case.id} a second time, with another "
                    f"{' and '.join(_changed(first.effort, candidate.effort))}",
                    source=suite.source,
                    path=block.path,
                )
    if not planned:
        what = "the filters of its blocks" if only is None else f"the filter {only!r}"
        raise BenchError(f"{suite.source}: no case matches {what}")
    for path in empty:
        warnings.warn(f"{suite.source}: {path}.filter: no case of this block matches", stacklevel=2)
    if launches is None:
        return tuple(planned.values())
    return tuple(
        msgspec.structs.replace(
            one,
            effort=msgspec.structs.replace(one.effort, launches=launches, max_launches=launches),
        )
        for one in planned.values()
    )


def _locate_own(suite: Suite) -> None:
    """Find the user's own code that a suite names, from the folder that the suite is in."""
    workloads = {split_reference(name)[0] for one in suite.blocks for name, _ in one.workloads}
    strategies = {name for one in suite.blocks for name, _ in one.strategies}
    for names, folder in (
        (workloads, suite.given_in or suite.folder),
        (strategies, suite.folder),
    ):
        for name in filter(own.is_own, names):
            with contextlib.suppress(BenchError):  # said where the name stands
                own.locate(name, [Path(folder)] if folder is not None else [])


def _without_twin(case: Case) -> Case:
    return msgspec.structs.replace(case, twin=False) if case.twin else case


def _climbed(first: PlannedCase, again: PlannedCase, suite: Suite, block: Block) -> PlannedCase:
    """A case that was planned already, as a rung; it can stand on one other only."""
    if first.rung_below not in {None, again.rung_below}:
        raise SuiteError(
            f"plans {again.case.id} as a rung of two ladders, on {first.rung_below} and on "
            f"{again.rung_below}: put them into two suites",
            source=suite.source,
            path=block.path,
        )
    return msgspec.structs.replace(first, rung_below=again.rung_below)


def _check_size(suite: Suite, planners: Iterable[BlockPlanner]) -> None:
    """Refuse what is too large before any of it is made."""
    total = 0
    for planner in planners:
        total += planner.count()
        if total > MAX_CASES:
            raise SuiteError(
                f"with this block the suite has {total:,} cases, more than {MAX_CASES:,} (filters "
                "count later): shorten its lists, which multiply, or make several suites",
                source=suite.source,
                path=planner.block.path,
            )


def _known_options(suite: Suite) -> Known:
    """What the mappings of any case may hold, to be named in a filter."""
    own_workloads = {split_reference(name)[0] for one in suite.blocks for name, _ in one.workloads}
    own_strategies = {name for one in suite.blocks for name, _ in one.strategies}
    workloads = [*all_workloads().values(), *_found(find_workload, own_workloads)]
    strategies = [*all_strategies().values(), *_found(find_strategy, own_strategies)]
    return {
        "workload_options": frozenset(x for w in workloads for x in w.options.__struct_fields__),
        "options": frozenset(x for s in strategies for x in s.options.__struct_fields__),
        "data_options": frozenset(
            x for one in all_sources().values() for x in one.options.__struct_fields__
        ),
        "env": frozenset(x for one in suite.blocks for env in one.axes.get("env", ()) for x in env),
    }


def _found(find: Callable[[str], Found], names: Iterable[str]) -> Iterator[Found]:
    for name in names:
        with contextlib.suppress(BenchError):  # said where the name stands
            yield find(name)


def _changed(first: Effort, second: Effort) -> list[str]:
    names = Effort.__struct_fields__
    return [name for name in names if getattr(first, name) != getattr(second, name)]
