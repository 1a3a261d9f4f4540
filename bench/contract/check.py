"""Run the contract's checks on somebody's strategy or workload, in real processes.

Looks from inside of the ranks say what is wrong; proofs, the same as those of a run, say whether
anything is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from bench.contract.finding import Finding
from bench.contract.launches import Launches
from bench.errors import BenchError, plural
from bench.plan import own
from bench.plan.case import Machine, PlannedCase
from bench.plan.exported import strategies_in, workloads_in
from bench.plan.matrix import expand
from bench.plan.registry import find_strategy, find_workload
from bench.plan.suite import parse_suite
from bench.run.launch import Launcher, probe_in_server
from bench.run.scratch import scratch
from bench.run.server import start_server, stop_server
from bench.strategies.base import Strategy

MODEL = "transformer:tiny"
"""What a strategy is tried on."""
PARTNERS = ("ddp", "fsdp", "dp")
"""Strategies that a workload is tried under, on two devices."""
EFFORT: Mapping[str, Any] = {"launches": 1, "timeout_s": 300}


def check_file(reference: str, *, model: str = MODEL) -> list[Finding]:
    """Check all that a file exports, or what is named of it.

    Args:
        reference: ``path/to/file.py``, with ``:NAME`` for one thing of it.
        model: workload with preset that strategies are tried on.

    Raises:
        BenchError: there is no such file, or nothing to check in it.
    """
    return check_references(references_in(reference), model=model)


def references_in(reference: str) -> list[str]:
    """One reference for each strategy, or else each workload, of a file.

    Raises:
        BenchError: there is no such file, or nothing to check in it.
    """
    if not own.is_own(reference):
        raise BenchError(f"'{reference}' is no {own.FORM}")
    where, name = own.parts_of(reference)
    if name is not None:
        return [reference]
    try:
        code = own.locate(reference)
        module = own.load(code)
    except BenchError as error:
        raise BenchError(f"'{reference}' {error}") from error
    found = [*strategies_in(module)] or [*workloads_in(module)]
    if not found:
        raise BenchError(
            f"{where} has nothing to check: neither a function that returns (model, loss, batches),"
            " nor a Strategy; it may end with STRATEGIES = (...) or WORKLOADS = (...)"
        )
    for one in found:
        own.tell({f"{where}:{one}": code})
    return [f"{where}:{one}" for one in found]


def check_references(references: Sequence[str], *, model: str = MODEL) -> list[Finding]:
    """Check strategies or workloads. Must be called from the main thread.

    Raises:
        BenchError: one of them is neither.
        Interruption: a signal arrived.
    """
    with scratch() as private:
        start_server()
        try:
            launcher = Launcher(private, probe_in_server())
            return [
                finding
                for reference in references
                for finding in checked(reference, launcher, model=model)
            ]
        finally:
            stop_server()


def checked(reference: str, launcher: Launcher, *, model: str = MODEL) -> Iterator[Finding]:
    """Check one; ``launcher`` starts its processes."""
    launches = Launches(launcher)
    strategy = _strategy(reference)
    if strategy is None:
        find_workload(reference)
        yield from _workload(reference, launches)
    else:
        yield from _of_strategy(reference, strategy, launches, model)


def _strategy(reference: str) -> Strategy | None:
    """The strategy that a reference means; None for a workload."""
    try:
        return find_strategy(reference)
    except BenchError as error:
        try:
            find_workload(reference)
        except BenchError as other:
            # Of one that is neither, what was said of it as a function is of no help.
            raise error from other
        return None


def _of_strategy(
    reference: str, strategy: Strategy, launches: Launches, model: str
) -> Iterator[Finding]:
    sizes = [1] if strategy.max_world_size == 1 else [2, 1, 3]
    sizes = [one for one in sizes if one <= (strategy.max_world_size or one)]
    on = {size: plan(launches.machine, model, reference, size) for size in sizes}
    for size, planned in on.items():
        if planned.skip_reason is not None:
            name = f"on {plural(size, 'device')}"
            yield Finding(subject=reference, name=name, status="skipped", found=planned.skip_reason)
            continue
        if size == sizes[0]:
            yield from launches.looks(reference, planned, "strategy")
        proof = launches.proof(reference, planned, f"proof on {plural(size, 'device')}")
        yield proof
        if proof.status == "bad":
            return  # further ones would say the same in other numbers
    twice = plan(launches.machine, model, reference, sizes[0], accumulation_steps=2)
    if twice.skip_reason is None:
        yield launches.proof(reference, twice, "proof with 2 micro-steps a step")
    if on[sizes[0]].skip_reason is None:
        yield launches.saved(reference, on[sizes[0]], "going on from a checkpoint")


def _workload(reference: str, launches: Launches) -> Iterator[Finding]:
    planned = plan(launches.machine, reference, "single", 1)
    if planned.skip_reason is not None:
        yield Finding(subject=reference, name="single", status="skipped", found=planned.skip_reason)
        return
    yield from launches.looks(reference, planned, "workload")
    for strategy in PARTNERS:
        planned = plan(launches.machine, reference, strategy, 2)
        name = f"proof under {strategy} on 2 devices"
        if planned.skip_reason is not None:
            yield Finding(subject=reference, name=name, status="skipped", found=planned.skip_reason)
        else:
            yield launches.proof(reference, planned, name)


def plan(
    machine: Machine, workload: str, strategy: str, world_size: int, **settings: Any
) -> PlannedCase:
    """The one case of a workload under a strategy."""
    block = {
        "workloads": [workload],
        "strategies": [strategy],
        "world_sizes": [world_size],
        **EFFORT,
        **settings,
    }
    suite = parse_suite(yaml.safe_dump({"matrix": [block]}), source="check")
    (planned,) = expand(suite, machine)
    return planned
