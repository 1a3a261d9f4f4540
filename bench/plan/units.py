"""What can be said of the models of a plan without any of them being built for real."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import torch

from bench.errors import one_line
from bench.plan.case import Case, PlannedCase
from bench.plan.own import at_its_place
from bench.plan.registry import find_workload
from workloads.base import Build
from workloads.quiet import META
from workloads.units import described


def units_in_words(planned: Sequence[PlannedCase]) -> Iterator[tuple[str, str]]:
    """Of each model of a plan: its name, and its shard units in words."""
    for case in _models(planned):
        yield f"{case.workload}:{case.preset}", _of(case)


def problems_in_words(planned: Sequence[PlannedCase]) -> Iterator[str]:
    """What speaks for a model's steps failing, as far as it shows before anything is started."""
    for case in _models(planned):
        workload = find_workload(case.workload)
        facts = workload.facts(msgspec.convert(case.workload_options, workload.options))
        if facts.step_problem is not None:
            yield one_line(
                f"{case.workload}:{case.preset}: a step on tensors without content fails, and a "
                f"real one may well: {facts.step_problem}"
            )


def _models(planned: Sequence[PlannedCase]) -> Iterator[Case]:
    """A case of each model that is not skipped."""
    seen: set[str] = set()
    for one in planned:
        case = one.case
        options = msgspec.json.encode(case.workload_options, order="deterministic").decode()
        key = f"{case.workload}:{case.preset} {options}"
        if key not in seen and one.skip_reason is None:
            seen.add(key)
            yield case


def _of(case: Case) -> str:
    workload = find_workload(case.workload)
    options = msgspec.convert(case.workload_options, workload.options)
    build = Build(
        device=META,
        dtype=torch.float32,
        seed=case.seed,
        per_device_batch=case.per_device_batch,
        optimizer=case.optimizer,
    )
    with torch.random.fork_rng(devices=[]):
        try:
            with META:
                problem = workload.build(options, build)
            return described(problem.model, problem.shard_units(problem.model))
        except Exception as error:  # noqa: BLE001 - not every model can be built without content
            return f"not known before it is built: {at_its_place(error)}"
