"""The contract of a strategy.

A strategy turns a ``Problem`` into a ``Session``, which the one training loop drives. It asks the
workload for facts, never for its name. A strategy file ends with ``STRATEGIES = (...)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor

from bench.plan.case import (
    AccumulationSync,
    Case,
    Compile,
    CompileScope,
    Machine,
    OptimizerKernels,
    Precision,
)
from bench.strategies.loss_scale import INITIAL_SCALE
from bench.strategies.nature import Exactness, Rhythm, as_it_is, exact, steady
from bench.strategies.saving import Saving, State, whole
from workloads.base import Batch, Facts, Problem

Mark = Callable[[str], None]
"""Called with the part of a step that just ended: data, forward, backward, optimizer. A dot names a
piece of one, such as ``forward.broadcast``, which counts as part of it too."""

Reference = Literal["micro_batches", "whole_batch", "none"]
"""What one device must do to train the same model: see ``bench.measure.reference``."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every strategy's settings; defaults are torch's own."""

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their default: only these are passed to torch."""
        return {
            name: getattr(self, name)
            for name, default in _defaults(type(self)).items()
            if getattr(self, name) != default
        }


@functools.cache
def _defaults(kind: type[Options]) -> dict[str, Any]:
    return {setting.name: setting.default for setting in msgspec.structs.fields(kind)}


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where a session runs: one process of a launched case, its group already joined."""

    device: torch.device
    rank: int
    world_size: int
    """Number of devices."""
    nodes: int = 1
    """Number of hosts, each with as many of the devices; ranks that are neighbours share one."""
    precision: Precision
    accumulation_steps: int
    activation_checkpointing: bool = False
    optimizer_kernels: OptimizerKernels = "auto"
    compile: Compile = "none"
    compile_scope: CompileScope = "outside"
    accumulation_sync: AccumulationSync = "last"
    initial_scale: float = INITIAL_SCALE
    """Of the loss under fp16-amp, before the scaler adapts it."""
    options: Any
    """The strategy's own ``Options``."""
    enter_device: Callable[[int], None] = field(default=lambda _: None)
    """Makes the calling thread work on the device of that number: for a process that drives
    several, each in a thread of its own."""
    one_thread: bool = False
    """Do everything in the calling thread, one device after the other, so that a profile sees it;
    never while time is measured."""


class Session(Protocol):
    """What the loop drives.

    A micro-step and an optimizer's must not make the host wait for the device by themselves; what a
    gradient scaler or the wrapper does so is flagged (``scaler_syncs``, ``host_waits``).
    """

    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        """Forward, loss and backward of one micro-batch.

        Args:
            batch: this process's samples.
            sync: end with gradients that are averaged over all ranks and micro-steps. False for
                all but the last micro-step of an optimizer step.
            mark: called after ``forward`` (loss included) and after ``backward``.

        Returns:
            The loss of this micro-batch, detached, on the device.
        """

    def optimizer_step(self) -> None:
        """Update the parameters and clear the gradients."""

    def skipped_steps(self) -> int:
        """Optimizer steps that a gradient scaler skipped so far. May synchronise."""

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Name and whole value of every parameter, as one device would hold it. Collective."""

    def full_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Name and whole synchronised gradient of every parameter that has one. Collective.

        Of the loss itself, whatever scale backward was given. Valid between the last micro-step and
        the optimizer step. A tied weight appears once.
        """

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Name, as in the model alone, and value of every buffer that this process has."""

    def bucket_bytes(self) -> list[int] | None:
        """Sizes of what is communicated at once; empty before they are settled.

        None for a strategy that has no such units, or does not tell of them.

        DDP's gradient buckets in use, FSDP's parameters of each sharded unit.
        """

    def held_bytes(self) -> list[dict[str, int]]:
        """For each device of this process, bytes by category of what lives from step to step.

        Categories: parameters, buffers, optimizer_state; a sharded tensor counts with its own part.
        """

    def held_addresses(self) -> dict[int, str]:
        """Category by address of each allocation that this process knows it holds right now.

        Of its first device: parameters, gradients, buffers, optimizer_state, and what else a
        strategy keeps. Empty where a strategy cannot tell.
        """

    def close(self) -> None:
        """Drop what refers to the process group, so that it can be destroyed."""


@runtime_checkable
class SavedSession(Session, Protocol):
    """A session whose training can be saved and gone on from: that of every ``ModuleSession``."""

    def keeps_state(self) -> bool:
        """Whether the optimizer has made any state by now, as far as this rank knows."""

    def take_state(self, *, whole: bool, with_optimizer: bool) -> State:
        """What is saved of the training: see ``bench.strategies.saving``. Collective.

        Args:
            whole: as one device would hold it, on rank 0 alone; else this rank's part.
            with_optimizer: its state too, made first where there is none yet.
        """

    def put_state(self, state: State, *, whole: bool) -> None:
        """Go on from what ``take_state`` gave, of this strategy or another. Collective.

        Args:
            state: all of it on every rank, or this rank's part of it.
            whole: which of the two.
        """

    def held_tensors(self) -> dict[str, list[Any]]:
        """What this process knows that it holds right now, by category.

        Among the categories: parameters, buffers, optimizer_state.
        """


def micro_batches(options: Mapping[str, Any]) -> Reference:
    """The reference of a strategy whose ranks each work on their own samples alone."""
    del options
    return "micro_batches"


def no_casts(options: Mapping[str, Any]) -> str | None:
    """For a strategy that leaves types to the case's precision."""
    del options
    return None


def all_ranks(case: Case) -> Sequence[int]:
    """For a strategy whose collectives are all of one group."""
    return [case.world_size]


def one_group(case: Case) -> Mapping[str, int]:
    """For a strategy whose operations each run in a group that is told by their number."""
    del case
    return {}


def no_flags(facts: Facts, case: Case) -> Sequence[str]:
    """For a strategy of which nothing need be said."""
    del facts, case
    return ()


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way of going parallel that a suite can name. A variant is another value."""

    name: str
    summary: str
    processes: Literal["one", "per_device"]
    """One process that drives all devices, or one for each."""
    max_world_size: int | None = None
    """Most devices it can use; None for no limit."""
    communicates: bool
    """Whether training steps contain collectives."""
    wraps: bool = True
    """Whether it lays a module of its own around the model: without one, compiling inside of it and
    outside are the same."""
    can_skip_sync: bool = False
    """Whether ``micro_step(sync=False)`` leaves the synchronisation out."""
    reference: Callable[[Mapping[str, Any]], Reference] = micro_batches
    """(options) -> what parity compares with."""
    casts: Callable[[Mapping[str, Any]], str | None] = no_casts
    """(options) -> type that it casts parameters to by itself, in place of autocast, under a
    precision of mixed types: ``bf16``, ``fp16``, or None. Parity compares with a model of it."""
    group_sizes: Callable[[Case], Sequence[int]] = all_ranks
    """(case) -> number of ranks of each kind of group that its collectives run in, first of that
    in which parameters are gathered."""
    operation_ranks: Callable[[Case], Mapping[str, int]] = one_group
    """(case) -> ranks of the group that an operation runs in, where there are groups of several
    kinds, and the operation tells which: a profile over gloo does not."""
    shards_gradients: bool = False
    """Whether a device keeps its part of the gradients only, once they are synchronised."""
    only_shards: str | None = None
    """The category of ``held_bytes`` that is all it splits over the devices, if it is one."""
    options: type[Options] = Options
    exactness: Callable[[Mapping[str, Any]], Exactness] = exact
    """(options) -> how near its training comes to that of one device."""
    rhythm: Callable[[Mapping[str, Any]], Rhythm] = steady
    """(options) -> in which steps it does what; the same on all ranks."""
    in_few_steps: Callable[[Mapping[str, Any]], Mapping[str, Any]] = as_it_is
    """(options) -> the same training with no more steps to settle, and between what it does once in
    a while, than need be: for proofs and the memory pass."""
    saving: Callable[[Mapping[str, Any], int], Saving] = whole
    """(options, number of devices) -> how its training state is saved; unless it is not, its
    session is a ``SavedSession``."""
    flags: Callable[[Facts, Case], Sequence[str]] = no_flags
    """(facts, case) -> what must be said wherever a figure of it is shown."""
    check: Callable[[Facts, Case, Machine], str | None]
    """(facts, case, machine) -> why this cannot run, or None."""
    prepare: Callable[[Problem, Context], Session]

    def has_sync_cost(self, options: Mapping[str, Any]) -> bool:
        """Whether steps with and without synchronisation can be set against each other.

        They end before the optimizer: of what synchronises in it they would tell nothing.
        """
        return self.can_skip_sync and self.exactness(options).kind != "local"


def always(facts: Facts, case: Case, machine: Machine) -> str | None:
    """The check of a strategy that runs everywhere."""
    del facts, case, machine
    return None
