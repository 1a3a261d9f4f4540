"""One process of a launch: what it was told, what it found out, and what it trains."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bench.measure.compilation import CompileWatch, bound_compiler, own_cores
from bench.measure.device import Device
from bench.measure.flops import Work, count_flops
from bench.measure.operations import slowest
from bench.measure.precision import PARAMETERS
from bench.plan.case import Case
from bench.plan.registry import find_workload
from bench.run.handover import Assignment, Job, RankOutcome
from bench.run.input import open_input
from bench.run.phases import NOTHING_COMPILED, Note, Notebook
from bench.strategies.base import Context, Session, Strategy
from bench.strategies.loss_scale import INITIAL_SCALE
from bench.strategies.module_session import ModuleSession
from bench.strategies.nature import Exactness, Rhythm
from bench.strategies.prepare import prepare
from workloads.base import Batch, Build, Problem
from workloads.data.feed import Feed

UNPACED: frozenset[Job] = frozenset(
    {"parity", "reference", "memory", "max_batch", "checkpoint", "strategy", "workload"}
)
"""Jobs that need few steps of each kind, however many a strategy's options ask for."""


@dataclass(kw_only=True)
class Rank:
    """This process within its launch."""

    assignment: Assignment
    rank: int
    local_rank: int
    processes: int
    strategy: Strategy
    device: Device
    outcome: RankOutcome
    notebook: Notebook | None = None
    """Where the parent can read how far this process is."""
    compilation: CompileWatch | None = field(default=None, init=False)
    """Of this process, where it is to compile anything."""
    feed: Feed | None = field(default=None, init=False)
    """Of this process, where its batches come through a loader."""
    _loss: Tensor | None = field(default=None, init=False)
    _since_s: float = field(default=0.0, init=False)
    _expected_s: float | None = field(default=None, init=False)

    def note(self, *, expected_s: float | None = None, **found: Any) -> None:
        """Add to what will be handed over; a phase is left on disk for when it never is.

        Args:
            expected_s: how long the phase will take, where that is known.
            found: fields of the outcome.
        """
        self.outcome = msgspec.structs.replace(self.outcome, **found)
        if "phase" in found:
            self._since_s, self._expected_s = time.monotonic(), expected_s
            self._write_note()

    def after_block(self, steps: int, loss: Tensor) -> None:
        """Count a block of optimizer steps, and keep its last loss without looking at it."""
        done = (self.outcome.step or 0) + steps
        self.outcome = msgspec.structs.replace(self.outcome, step=done)
        self._loss = loss
        self._write_note()

    def loss_is_finite(self) -> bool | None:
        """Whether the last loss is a number; None before any step. Waits for the device."""
        return None if self._loss is None else bool(torch.isfinite(self._loss).all())

    def watch_compiler(self) -> None:
        """Begin to watch what is compiled, and bound what it takes; nothing where nothing is."""
        if self.case.compile != "none" and self.assignment.job != "reference":
            bound_compiler(own_cores())
            self.compilation = CompileWatch()

    def note_compiled(self) -> None:
        """Add what was compiled so far to what will be handed over."""
        if self.compilation is not None:
            self.note(compiled=self.compilation.read())

    def session(self, problem: Problem, **told: Any) -> Session:
        """What trains a freshly built problem; ``told`` as in ``context``."""
        session = prepare(self.strategy, problem, self.context(**told))
        if self.compilation is not None:
            self.compilation.within_ddp = _is_within_ddp(session)
        return session

    def _write_note(self) -> None:
        if self.notebook is not None:
            phase = self.outcome.phase
            self.notebook.write(
                Note(
                    phase=phase,
                    since_s=self._since_s,
                    expected_s=self._expected_s,
                    compiles=self.compilation is not None and phase not in NOTHING_COMPILED,
                    step=self.outcome.step,
                )
            )

    @property
    def case(self) -> Case:
        """What to run."""
        return self.assignment.case

    @property
    def options(self) -> Mapping[str, Any]:
        """The strategy's settings, as this job needs them."""
        options = self.case.options
        return self.strategy.in_few_steps(options) if self.assignment.job in UNPACED else options

    @property
    def rhythm(self) -> Rhythm:
        """In which of this job's steps the strategy does what."""
        return self.strategy.rhythm(self.options)

    @property
    def exactness(self) -> Exactness:
        """How near the strategy comes to what one device would train."""
        return self.strategy.exactness(self.options)

    @property
    def has_group(self) -> bool:
        """Whether this process belongs to a process group.

        A process that shares nothing with others has none, as in a plain script: the threads of
        gloo wake up a hundred times a second, which costs a step about one percent.
        """
        strategy = self.strategy
        uses_group = strategy.communicates and strategy.processes == "per_device"
        return self.processes > 1 or (uses_group and self.assignment.job != "reference")

    @property
    def driven(self) -> int:
        """How many devices this process drives."""
        return self.case.world_size if self.strategy.processes == "one" else 1

    def context(
        self,
        *,
        exact: bool = False,
        one_thread: bool = False,
        initial_scale: float = INITIAL_SCALE,
    ) -> Context:
        """What a strategy is told.

        Args:
            exact: train in fp64, where no precision applies.
            one_thread: see ``Context``.
            initial_scale: likewise.
        """
        return Context(
            device=self.device.torch_device,
            rank=self.rank,
            world_size=self.case.world_size,
            nodes=self.case.nodes,
            precision="fp32" if exact else self.case.precision,
            accumulation_steps=self.case.accumulation_steps,
            activation_checkpointing=self.case.activation_checkpointing,
            optimizer_kernels=self.case.optimizer_kernels,
            compile=self.case.compile,
            compile_scope=self.case.compile_scope,
            accumulation_sync=self.case.accumulation_sync,
            initial_scale=initial_scale,
            options=msgspec.convert(self.options, self.strategy.options),
            enter_device=self.device.enter,
            one_thread=one_thread,
        )

    def problem(self) -> Problem:
        """The case's workload, built."""
        workload = find_workload(self.case.workload)
        options = msgspec.convert(self.case.workload_options, workload.options)
        return self._build(options, self.case.per_device_batch)

    def problem_for_proof(
        self,
        *,
        dtype: torch.dtype | None = None,
        plain: bool = False,
        seed: int | None = None,
    ) -> Problem:
        """The case's model on less data.

        Args:
            dtype: of its parameters; the case's own by default.
            plain: with the optimizer as torch has it by default, whatever kernels are asked for.
            seed: in place of the case's own.
        """
        options, batch = proof_size(self.case)
        return self._build(options, batch, dtype, plain=plain, is_proof=True, seed=seed)

    def count_flops(self) -> Work:
        """Those of one micro-step of one device."""
        workload = find_workload(self.case.workload)
        options = msgspec.convert(self.case.workload_options, workload.options)
        return count_flops(workload, options, self._build_of(self.case.per_device_batch))

    def _build(
        self,
        options: Any,
        batch: int,
        dtype: torch.dtype | None = None,
        *,
        plain: bool = False,
        is_proof: bool = False,
        seed: int | None = None,
    ) -> Problem:
        build = self._build_of(batch, dtype, plain=plain)
        build = dataclasses.replace(
            build, is_proof=is_proof, seed=build.seed if seed is None else seed
        )
        return find_workload(self.case.workload).build(options, build)

    def _build_of(
        self, batch: int, dtype: torch.dtype | None = None, *, plain: bool = False
    ) -> Build:
        return Build(
            device=self.device.torch_device,
            dtype=dtype or PARAMETERS[self.case.precision],
            seed=self.case.seed,
            per_device_batch=batch,
            optimizer=self.case.optimizer,
            optimizer_kernels="auto" if plain else self.case.optimizer_kernels,
        )

    def batches(self, problem: Problem) -> Iterator[Batch]:
        """This process's own samples: its shard, or all shards if it drives all devices."""
        if self.strategy.processes == "one":
            return problem.batches(None, self.case.world_size)
        return problem.batches(self.rank, self.case.world_size)

    def open_feed(self, problem: Problem) -> Iterator[Batch]:
        """What this job's steps train on: through a loader, if the case's time is what it asks for.

        All other passes have their batches from the device: they ask what a strategy does, which
        does not hang on where data come from.
        """
        if self.case.data == "device" or self.assignment.job != "timing":
            return self.batches(problem)
        build = self._build_of(self.case.per_device_batch)
        self.feed = open_input(self.assignment, self.strategy, self.rank, problem, build)
        return self.feed

    def slowest(self, value: float) -> float:
        """Largest value over all ranks; on host tensors, so no device is involved."""
        if self.processes == 1:
            return value
        return slowest(value)


def _is_within_ddp(session: Session) -> bool:
    """Whether forward goes through DDP, which the compiler has a way of its own with."""
    return isinstance(session, ModuleSession) and any(
        isinstance(module, DistributedDataParallel) for module in session.module.modules()
    )


def proof_size(case: Case) -> tuple[Any, int]:
    """(options of the workload, per-device batch) that a case is proved with."""
    workload = find_workload(case.workload)
    options = msgspec.convert(case.workload_options, workload.options)
    return workload.for_proof(options, case.per_device_batch)
