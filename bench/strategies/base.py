"""The contract of a strategy, and the session that most of them share.

A strategy turns a ``Problem`` into a ``Session``, which the one training loop drives. It asks the
workload for facts, never for its name. A strategy file ends with ``STRATEGIES = (...)``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.profiler import record_function

from bench.measure.ranges import device_range, move_range
from bench.plan.case import (
    AccumulationSync,
    Case,
    Compile,
    CompileScope,
    Machine,
    OptimizerKernels,
    Precision,
)
from bench.strategies.loss_scale import INITIAL_SCALE, LossScale
from bench.strategies.nature import Exactness, Rhythm, as_it_is, exact, steady
from bench.strategies.saving import Saving, State, put, take, whole
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
    """What the loop drives. None of these may synchronise host and device by itself."""

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


AUTOCAST: Mapping[Precision, torch.dtype] = {
    "bf16-amp": torch.bfloat16,
    "fp16-amp": torch.float16,
}


def autocast(context: Context) -> AbstractContextManager[object]:
    """The autocast region that the case's precision asks for; nothing for plain precisions."""
    dtype = AUTOCAST.get(context.precision)
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(context.device.type, dtype=dtype)


def moving(operation: str, tensors: Iterable[Tensor]) -> record_function:
    """A range in which a strategy itself moves tensors between devices: it is communication."""
    return record_function(move_range(operation, local_bytes(tensors)))


def on_device(index: int) -> record_function:
    """A range in which one of several devices works."""
    return record_function(device_range(index))


def is_shard(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which this device holds a part."""
    return hasattr(tensor, "_local_tensor")


def addresses(tensors: Iterable[Any]) -> Iterator[int]:
    """Where the allocations begin that some tensors stand in, as far as this device holds them."""
    for tensor in tensors:
        part = getattr(tensor, "_local_tensor", tensor)
        if not isinstance(part, Tensor):
            continue
        dense = [part._indices(), part._values()] if part.is_sparse else [part]
        yield from (one.untyped_storage().data_ptr() for one in dense)


def local_bytes(tensors: Iterable[Any]) -> int:
    """Bytes that this device holds of some tensors; whatever is no tensor counts nothing."""
    parts = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    return sum(_bytes(part) for part in parts if isinstance(part, Tensor))


def _bytes(tensor: Tensor) -> int:
    if tensor.is_sparse:  # ``indices()`` would want it coalesced
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes


def plain_scaler(context: Context) -> GradScaler:
    """The scaler of torch: right where ranks have whole gradients, or shards that are DTensors."""
    return GradScaler(context.device.type, init_scale=context.initial_scale)


@dataclass(kw_only=True)
class ModuleSession:
    """Session of a wrapped module whose gradients stand in ``parameter.grad``."""

    problem: Problem
    context: Context
    module: nn.Module
    """What forward is called on: the model, or the wrapper around it."""
    optimizer: Optimizer
    unsynchronised: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    """Region in which backward leaves gradients local."""
    read_buckets: Callable[[], list[int] | None] = field(default=lambda: None)
    whole: Callable[[Tensor], Tensor] = field(default=lambda tensor: tensor)
    """What one device would hold of a parameter or gradient. Collective where it is sharded."""
    casts_itself: bool = False
    """Whether the wrapper computes in a narrow type by itself: then there is no autocast."""
    is_sharded: bool = False
    """Whether the model's parameters are DTensors, but for those that are gathered right now."""
    state_keeper: Optimizer | None = None
    """What holds this device's share of the optimizer's state, where that is another object."""
    make_scaler: Callable[[Context], GradScaler] = plain_scaler
    """Called under fp16-amp only; its scaler must skip a step on all ranks or on none."""
    steps_together: bool = False
    """Whether an optimizer step needs synchronised gradients, since it communicates or its share of
    them is made by that. After a micro-step without, gradients are only cleared: a scaler would
    find none, or let some ranks step and others not."""
    is_synchronised: bool = True
    """Whether the last micro-step was."""

    @functools.cached_property
    def loss_scale(self) -> LossScale | None:
        """Scales the loss where the case's precision asks for it."""
        if self.context.precision != "fp16-amp":
            return None
        return LossScale(self.make_scaler(self.context))

    def backward(self, loss: Tensor) -> None:
        """Backward of this micro-step's share of the optimizer step's loss, scaled if need be."""
        steps = self.context.accumulation_steps
        share = loss / steps if steps > 1 else loss
        if self.loss_scale is not None:
            share = self.loss_scale.scale(share)
        share.backward()  # type: ignore[no-untyped-call]

    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        """See ``Session``."""
        self.is_synchronised = sync
        with contextlib.nullcontext() if sync else self.unsynchronised():
            with contextlib.nullcontext() if self.casts_itself else autocast(self.context):
                loss = self.problem.loss(self.module(*batch.inputs), batch)
            mark("forward")
            self.backward(loss)
            mark("backward")
        return loss.detach()

    def unscale(self) -> None:
        """Make the gradients those of the loss itself; at the latest, the optimizer does."""
        if self.loss_scale is not None:
            self.loss_scale.unscale(self.optimizer)

    def optimizer_step(self) -> None:
        """See ``Session``."""
        if self.steps_together and not self.is_synchronised:
            self.optimizer.zero_grad()
            return
        if self.loss_scale is None:
            self.optimizer.step()
        else:
            self.loss_scale.step(self.optimizer)
        self.optimizer.zero_grad()

    def skipped_steps(self) -> int:
        """See ``Session``."""
        return 0 if self.loss_scale is None else self.loss_scale.skipped()

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        for name, parameter in self.problem.model.named_parameters():
            yield name, self.whole(parameter.detach())

    def full_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``; those of the loss without its scale."""
        self.unscale()
        for name, parameter in self.problem.model.named_parameters():
            if parameter.grad is not None:
                yield name, self.whole(parameter.grad)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        yield from self.problem.model.named_buffers()

    def bucket_bytes(self) -> list[int] | None:
        """See ``Session``."""
        return self.read_buckets()

    def held_bytes(self) -> list[dict[str, int]]:
        """See ``Session``."""
        model = self.problem.model
        states = (self.state_keeper or self.optimizer).state.values()
        held = {
            "parameters": local_bytes(model.parameters()),
            "buffers": local_bytes(model.buffers()),
            "optimizer_state": sum(local_bytes(state.values()) for state in states),
        }
        return [held]

    def held_tensors(self) -> dict[str, list[Any]]:
        """What this process knows that it holds right now, by category; later ones win."""
        parameters = list(self.problem.model.parameters())
        states = (self.state_keeper or self.optimizer).state.values()
        return {
            "parameters": parameters,
            "unsharded_parameters": [
                one for one in parameters if self.is_sharded and not is_shard(one)
            ],
            "buffers": list(self.problem.model.buffers()),
            "gradients": [one.grad for one in parameters if one.grad is not None],
            "optimizer_state": [part for state in states for part in state.values()],
        }

    def held_addresses(self) -> dict[int, str]:
        """See ``Session``."""
        held = self.held_tensors()
        return {address: name for name, tensors in held.items() for address in addresses(tensors)}

    def saved_module(self) -> nn.Module:
        """What names and holds the parameters that are saved."""
        return self.problem.model

    def keeps_state(self) -> bool:
        """See ``SavedSession``."""
        return any(map(bool, (self.state_keeper or self.optimizer).state.values()))

    def take_state(self, *, whole: bool, with_optimizer: bool) -> State:
        """See ``SavedSession``."""
        state = take(self.saved_module(), self.optimizer if with_optimizer else None, whole=whole)
        return self.with_loss_scale(state)

    def with_loss_scale(self, state: State) -> State:
        """A training state with the scaler's own, where there are both."""
        if state and self.loss_scale is not None:
            state["loss_scale"] = self.loss_scale.state()
        return state

    def put_state(self, state: State, *, whole: bool) -> None:
        """See ``SavedSession``."""
        put(self.saved_module(), self.optimizer, state, whole=whole)
        self.put_loss_scale(state)

    def put_loss_scale(self, state: State) -> None:
        """Set the scaler's own, where there are both."""
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.set(state["loss_scale"])

    def close(self) -> None:
        """See ``Session``: the wrapper holds the group."""
        self.module = self.problem.model
        self.read_buckets = lambda: None
        self.unsynchronised = contextlib.nullcontext


def always(facts: Facts, case: Case, machine: Machine) -> str | None:
    """The check of a strategy that runs everywhere."""
    del facts, case, machine
    return None
