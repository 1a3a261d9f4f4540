"""One block of a suite x machine -> its cases, each with a reason if it will not run."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bench.errors import FilterError, SuiteError, one_line
from bench.plan.case import Case, Effort, Machine, PlannedCase, identify
from bench.plan.chosen import Chosen, Model, Way
from bench.plan.fields import Settings
from bench.plan.filter import Known, matching
from bench.plan.fit import backend_of, flags_of, missing, nodes_of, scope_of
from bench.plan.inputs import (
    flags_of_input,
    problem_of_input,
)
from bench.plan.own import codes_of
from bench.plan.settings import problem_of
from bench.plan.suite import Block, Suite
from bench.strategies.base import Strategy

MAX_SAMPLES = 10**12
"""Of one optimizer step."""


class BlockPlanner:
    """Expands one block of a suite for one machine."""

    def __init__(self, suite: Suite, block: Block, machine: Machine, known: Known) -> None:
        self.known = known
        self.suite = suite
        self.block = block
        self.machine = machine
        self._chosen = Chosen(suite, block)
        self._digests = functools.cache(_digests)
        self._line = functools.cache(one_line)

    def expand(self) -> Iterator[PlannedCase]:
        """The block's cases: workloads, then settings, then strategies, then sizes."""
        ways = self._chosen.ways()
        try:
            wanted = matching(self.block.filter, self.known)
        except FilterError as error:
            raise self._chosen.error(str(error), "filter") from error
        for index, (reference, axes) in enumerate(self.block.workloads):
            for settings in _settings(self.block):
                effort = _effort(settings)
                if effort.max_launches < effort.launches and self._asks_for("max_launches"):
                    raise self._chosen.error(
                        f"is less than the {effort.launches} launches of each case", "max_launches"
                    )
                device = self.machine.device_type(settings.device)
                for model in self._chosen.models(reference, axes, device, f"workloads[{index}]"):
                    for way, world_size in _way_sizes(ways, self.block.world_sizes):
                        rungs = self._rungs(model, way, world_size, settings, effort)
                        for planned in kept(rungs, lambda one: wanted(one.case)):
                            yield from self._with_twin(planned)

    def _with_twin(self, planned: PlannedCase) -> Iterator[PlannedCase]:
        yield planned
        if self.block.twins:
            twin = identify(msgspec.structs.replace(planned.case, twin=True, id=""))
            yield msgspec.structs.replace(planned, case=twin, rung_below=None)

    def _rungs(
        self, model: Model, way: Way, world_size: int, settings: Settings, effort: Effort
    ) -> Iterator[PlannedCase]:
        """The case, and each that the block's ladder makes of it, from the lowest rung up."""
        lower = self._resolve(model, way, world_size, settings, effort)
        seen = {lower.case.id}
        yield lower
        for rung in self.block.ladder:
            settings = msgspec.structs.replace(settings, **rung.settings)
            if rung.options:
                way = self._chosen.way(
                    way.name, way.strategy, way.options | rung.options, f"{rung.path}.options"
                )
            planned = self._resolve(model, way, world_size, settings, effort)
            if planned.case.id == lower.case.id:
                raise SuiteError(
                    f"changes nothing of {lower.case.id}", source=self.suite.source, path=rung.path
                )
            if planned.case.id in seen:
                raise SuiteError(
                    f"comes back to {planned.case.id}, which the ladder has been at before",
                    source=self.suite.source,
                    path=rung.path,
                )
            seen.add(planned.case.id)
            lower = msgspec.structs.replace(planned, rung_below=lower.case.id)
            yield lower

    def _asks_for(self, setting: str) -> bool:
        return setting in self.block.axes

    def count(self) -> int:
        """Cases before filters, without making any."""
        workloads = sum(_combinations(axes) for _, axes in self.block.workloads)
        ways = sum(
            _combinations(axes) * len(_sizes(strategy, self.block.world_sizes))
            for _, _, strategy, axes in self._chosen.strategies()
        )
        each = (1 + len(self.block.ladder)) * (1 + self.block.twins)
        return _combinations(self.block.axes) * workloads * ways * each

    def _resolve(
        self, model: Model, way: Way, world_size: int, settings: Settings, effort: Effort
    ) -> PlannedCase:
        device = self.machine.device_type(settings.device)
        given = self._chosen.input_for(settings.data, model.facts)
        per_device, total = self._batch(model, world_size, settings)
        each = self.machine.device_count(device, cores_per_device=self.suite.cores_per_device)
        nodes = nodes_of(settings.nodes, way.strategy, world_size, each, self.machine.hosts)
        between = nodes > 1  # a link that nothing goes over makes no other case
        case = identify(
            Case(
                workload=model.name,
                preset=model.preset,
                workload_options=model.options,
                strategy=way.name,
                options=way.options,
                label=way.label,
                device=device,
                backend=backend_of(way.strategy, settings.backend, device, self.machine),
                world_size=world_size,
                nodes=nodes,
                precision=settings.precision,
                compile=settings.compile,
                optimizer=(
                    model.workload.optimizer if settings.optimizer == "auto" else settings.optimizer
                ),
                per_device_batch=per_device,
                global_batch=total,
                scaling=settings.scaling,
                accumulation_steps=settings.accumulation_steps,
                cores_per_device=self.suite.cores_per_device if device == "cpu" else None,
                data=given.source.name,
                seed=settings.seed,
                activation_checkpointing=settings.activation_checkpointing,
                optimizer_kernels=settings.optimizer_kernels,
                compile_scope=scope_of(way.strategy, settings.compile, settings.compile_scope),
                accumulation_sync=settings.accumulation_sync,
                env=settings.env,
                link=settings.link if between else None,
                latency_ms=settings.latency_ms if between else None,
                sources=self._digests(model.name, way.name) | given.digests,
                data_options=given.settings,
                data_label=given.label,
            )
        )
        available = each * min(nodes, self.machine.hosts)
        return PlannedCase(
            case=case,
            effort=effort,
            skip_reason=self._skip_reason(case, model, way.strategy, available)
            or problem_of_input(case, way.strategy, model.facts, given, self.machine),
            flags=(
                *self._flags(case, model, way.strategy, available),
                *flags_of_input(case, way.strategy, given, self.machine),
            ),
        )

    def _flags(
        self, case: Case, model: Model, strategy: Strategy, available: int
    ) -> tuple[str, ...]:
        try:
            found = tuple(flags_of(case, strategy, model.facts, available, self.machine))
        except Exception as error:  # a user's own function
            message = f"the flags of {case.strategy} fail: {type(error).__name__}: {error}"
            raise self._chosen.error(message, "strategies") from error
        return tuple(map(self._line, found))

    def _skip_reason(
        self, case: Case, model: Model, strategy: Strategy, available: int
    ) -> str | None:
        reason = missing(case, strategy, model.facts, available, self.machine)
        reason = reason or problem_of(case, model.facts, strategy)
        if reason is not None:
            return reason
        try:
            problem = strategy.check(model.facts, case, self.machine)
            return None if problem is None else one_line(problem)
        except Exception as error:  # a user's own check
            message = f"the check of {case.strategy} fails: {type(error).__name__}: {error}"
            raise self._chosen.error(message, "strategies") from error

    def _batch(self, model: Model, world_size: int, settings: Settings) -> tuple[int, int]:
        """(per device, global) batch under the scaling rule asked for."""
        steps = world_size * settings.accumulation_steps
        asked = settings.global_batch
        if settings.scaling == "weak":
            if asked is not None:
                raise self._chosen.error(
                    "weak scaling fixes per_device_batch; a global_batch needs scaling: strong",
                    "global_batch",
                )
            per_device = settings.per_device_batch or model.per_device_batch
            if per_device * steps > MAX_SAMPLES:
                raise self._chosen.error(
                    f"{world_size} devices x {settings.accumulation_steps} accumulation steps x "
                    f"{per_device} samples are more than {MAX_SAMPLES:,} in a step",
                    "per_device_batch",
                )
            return per_device, per_device * steps
        if asked is None or settings.per_device_batch is not None:
            raise self._chosen.error(
                "strong scaling needs a global_batch, and no per_device_batch",
                "global_batch" if asked is None else "per_device_batch",
            )
        if asked % steps:
            raise self._chosen.error(
                f"{asked} does not divide by {world_size} devices x "
                f"{settings.accumulation_steps} accumulation steps",
                "global_batch",
            )
        return asked // steps, asked


def _digests(*names: str) -> dict[str, str]:
    """A digest of each that is the user's own."""
    return {name: code.digest for name, code in codes_of(names).items()}


def _settings(block: Block) -> Iterator[Settings]:
    """The product of a block's axes, the last one named varying fastest."""
    for values in itertools.product(*block.axes.values()):
        yield Settings(**dict(zip(block.axes, values, strict=True)))


def _way_sizes(ways: Sequence[Way], world_sizes: Sequence[int]) -> Iterator[tuple[Way, int]]:
    """A strategy bound to fewer devices than all sizes asked for runs once, on its largest."""
    for way in ways:
        for size in _sizes(way.strategy, world_sizes):
            yield way, size


def _sizes(strategy: Strategy, world_sizes: Sequence[int]) -> list[int]:
    limit = strategy.max_world_size
    return [size for size in world_sizes if limit is None or size <= limit] or [limit or 1]


def kept(
    planned: Iterable[PlannedCase], wanted: Callable[[PlannedCase], bool]
) -> Iterator[PlannedCase]:
    """Those that are wanted; a rung stands on the next one below it that is.

    Args:
        planned: in order, each rung behind what it stands on.
        wanted: whether one is to stay.
    """
    dropped: dict[str, str | None] = {}
    for one in planned:
        below = one.rung_below
        while below in dropped:
            below = dropped[below]
        if wanted(one):
            is_moved = below != one.rung_below
            yield msgspec.structs.replace(one, rung_below=below) if is_moved else one
        else:
            dropped[one.case.id] = below


def _combinations(axes: Mapping[str, list[Any]]) -> int:
    return math.prod(map(len, axes.values()))


def _effort(settings: Settings) -> Effort:
    return Effort(**{name: getattr(settings, name) for name in Effort.__struct_fields__})
