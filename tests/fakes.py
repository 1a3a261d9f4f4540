"""Stand-ins at the seams: strategies that misbehave on purpose, a clock, events, a machine.

The strategies are named in suites as ``tests.fakes:NAME``, like a user's own.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from bench.plan.case import Case, DeviceInfo, Effort, Machine, PlannedCase, Window, identify
from bench.strategies import ddp
from bench.strategies.base import Context, Mark, Session, Strategy, always
from bench.strategies.local_sgd import LocalSession
from bench.strategies.module_session import ModuleSession
from bench.strategies.saving import State
from bench.strategies.single import prepare as prepare_single
from tests import misbehaviour
from tests.misbehaviour import misbehave, misbehave_early
from workloads.base import Batch, Build, Facts, Options, Preset, Problem, Workload

TWO_CORES = Machine(cores=(0, 1))
EIGHT_GPUS = Machine(
    cores=tuple(range(64)),
    accelerator="cuda",
    devices=tuple(
        DeviceInfo(name="NVIDIA A100-SXM4-80GB", uuid=f"{i:08x}", visible_as=f"GPU-{i:08x}")
        for i in range(8)
    ),
    backends=("gloo", "nccl"),
    default_backends={"cpu": "gloo", "cuda": "nccl"},
)
SHORT = Effort(launches=1, window=Window(min_steps=4, max_s=0.2, target_interval=0.5), timeout_s=60)


def make_case(**changes: Any) -> Case:
    """A case of the smallest transformer, on one CPU device unless changed."""
    world_size = changes.get("world_size", 1)
    fields: dict[str, Any] = {
        "workload": "transformer",
        "preset": "tiny",
        "workload_options": {
            "layers": 2,
            "heads": 2,
            "width": 64,
            "vocabulary": 256,
            "sequence_length": 32,
            "tie_embeddings": True,
        },
        "strategy": "single",
        "options": {},
        "label": changes.get("strategy", "single"),
        "device": "cpu",
        "backend": "gloo",
        "world_size": 1,
        "precision": "fp32",
        "compile": "none",
        "optimizer": "adamw",
        "per_device_batch": 4,
        "global_batch": 4 * world_size,
        "scaling": "weak",
        "accumulation_steps": 1,
        "cores_per_device": 1,
        "data": "device",
        "seed": 0,
    }
    return identify(msgspec.convert(fields | changes, Case))


def make_planned(case: Case, effort: Effort = SHORT) -> PlannedCase:
    """The case as it is planned."""
    return PlannedCase(case=case, effort=effort)


class FakeTime:
    """A clock that only moves when something takes time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.late_work_s = 0.0
        """Work that a device has been given and not finished."""
        self.synchronisations: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def synchronize(self) -> None:
        self.synchronisations.append(self.now_s)
        self.now_s += self.late_work_s
        self.late_work_s = 0.0


@dataclass
class FakeEvent:
    """A device event on a fake time: it happens when the work before it is done."""

    time: FakeTime
    at_s: float = 0.0

    def record(self) -> None:
        self.at_s = self.time.now_s + self.time.late_work_s

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at_s - self.at_s) * 1e3


@dataclass
class FakeSession:
    """Takes a set time for each part of a step; counts what it is asked to do."""

    sleep: Any
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    synchronised: list[bool] = field(default_factory=list)
    steps: int = 0

    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        del batch
        self.sleep(self.forward_s)
        mark("forward")
        self.sleep(self.backward_s)
        mark("backward")
        self.synchronised.append(sync)
        return torch.zeros(())

    def optimizer_step(self) -> None:
        self.sleep(self.optimizer_s)
        self.steps += 1

    def skipped_steps(self) -> int:
        return 0

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", torch.zeros(1)

    def full_gradients(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", torch.zeros(1)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        yield from ()

    def bucket_bytes(self) -> list[int] | None:
        return None

    def held_addresses(self) -> dict[int, str]:
        return {}

    def held_bytes(self) -> list[dict[str, int]]:
        return [{"parameters": 4}]

    def close(self) -> None:
        self.steps = -1


@dataclass(kw_only=True)
class Misbehaving(ModuleSession):
    """A session with one thing wrong, which ``fault`` names."""

    fault: str
    count: int = 0

    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        if self.fault == "late" and self.context.rank == self.context.world_size - 1:
            time.sleep(misbehaviour.LATE_S)
        loss = super().micro_step(batch, sync=sync and self.fault != "local", mark=mark)
        if self.fault == "one_tensor_local" and self.context.rank == 0:
            gradient = self.problem.model.get_parameter("norm.bias").grad
            assert gradient is not None
            gradient.mul_(1.5)
        if self.fault == "slow":
            time.sleep(misbehaviour.SLOW_S)
        if self.fault == "summed":
            for parameter in self.problem.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.context.world_size)
        return loss

    def optimizer_step(self) -> None:
        self.count += 1
        if self.count == 3 and self.context.rank == self.context.world_size - 1:
            misbehave(self.fault, self)
        super().optimizer_step()

    def close(self) -> None:
        if self.fault == "abort" and self.context.rank == self.context.world_size - 1:
            os.abort()
        super().close()


def _misbehaving(fault: str, **changes: Any) -> Strategy:
    def prepare(problem: Problem, context: Context) -> Session:
        if context.rank == context.world_size - 1:
            misbehave_early(fault, problem)
        inner = ddp.prepare(problem, context)
        assert isinstance(inner, ModuleSession)
        fields = {one.name: getattr(inner, one.name) for one in dataclasses.fields(inner)}
        return Misbehaving(**fields, fault=fault)

    (plain,) = ddp.STRATEGIES
    return dataclasses.replace(plain, name=fault, prepare=prepare, **changes)


def _inexact(fault: str) -> Strategy:
    """Post-local SGD with one thing wrong."""

    def prepare(problem: Problem, context: Context) -> Session:
        session = ddp.prepare(problem, context)
        assert isinstance(session, LocalSession)
        averager = session.averaging.averager
        assert isinstance(averager, PeriodicModelAverager)
        averager.period = 1  # a step after the start is one with an average
        if fault == "never_averaged":
            averager.warmup_steps = 10**9
        return session

    (plain,) = ddp.STRATEGIES
    return dataclasses.replace(plain, name=fault, prepare=prepare)


NEVER_AVERAGED = _inexact("never_averaged")
NEVER_APART = _inexact("never_apart")


def _without_hook(problem: Problem, context: Context) -> Session:
    """DDP whose options name a hook that it does not have."""
    options = msgspec.structs.replace(context.options, comm_hook="none")
    return ddp.prepare(problem, dataclasses.replace(context, options=options))


NEVER_COMPRESSED = dataclasses.replace(
    ddp.STRATEGIES[0], name="never_compressed", prepare=_without_hook
)


def _on_two_hosts() -> Strategy:
    """DDP whose ranks are told that they are on two hosts, while all of them are on this one."""
    (plain,) = ddp.STRATEGIES

    def there(case: Case) -> Case:
        return msgspec.structs.replace(case, nodes=2)

    def prepare(problem: Problem, context: Context) -> Session:
        return ddp.prepare(problem, dataclasses.replace(context, nodes=2))

    return dataclasses.replace(
        plain,
        name="two_hosts",
        check=lambda facts, case, machine: plain.check(facts, there(case), machine),
        group_sizes=lambda case: plain.group_sizes(there(case)),
        operation_ranks=lambda case: plain.operation_ranks(there(case)),
        prepare=prepare,
    )


TWO_HOSTS = _on_two_hosts()


LOCAL = _misbehaving("local")
ONE_TENSOR_LOCAL = _misbehaving("one_tensor_local")
SUMMED = _misbehaving("summed")
LATE = _misbehaving("late")


def __getattr__(name: str) -> Strategy:
    """Each fault of ``tests.misbehaviour`` as a strategy: ``tests.fakes:KILL``."""
    if name in misbehaviour.NAMES:
        # No proof and no pass for communication, which would only show the same once more.
        return _misbehaving(name.lower(), reference=lambda _: "none", communicates=False)
    raise AttributeError(name)


def _prepare_sleeping(problem: Problem, context: Context) -> Session:
    del problem
    return FakeSession(time.sleep, forward_s=0.02 * (1 + context.rank))


SLEEPING = Strategy(
    name="sleeping",
    summary="a step of 20 ms, 20 ms more on each further rank",
    processes="per_device",
    communicates=True,
    reference=lambda _: "none",
    check=always,
    prepare=_prepare_sleeping,
)


UNWRAPPED = Strategy(
    name="unwrapped",
    summary="every rank trains alone: what a missing wrapper does",
    processes="per_device",
    communicates=True,
    check=always,
    prepare=prepare_single,
)


class _Forgetful(ModuleSession):
    def put_state(self, state: State, *, whole: bool) -> None:
        super().put_state({"model": state["model"]}, whole=whole)


def _prepare_forgetful(problem: Problem, context: Context) -> Session:
    return _Forgetful(
        problem=problem,
        context=context,
        module=problem.model,
        optimizer=problem.make_optimizer(problem.model.parameters()),
    )


FORGETFUL = Strategy(
    name="forgetful",
    summary="restores no state of the optimizer",
    processes="per_device",
    communicates=False,
    check=always,
    prepare=_prepare_forgetful,
)


def world_of_one() -> None:
    """Join a group of one process, for what needs a group in the test's own process."""
    distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)


class PaddedOptions(Options, frozen=True, kw_only=True):
    """A table whose first row is padding and has no gradient."""

    rows: int = 16


def _build_padded(options: PaddedOptions, build: Build) -> Problem:
    torch.manual_seed(build.seed)
    table = nn.EmbeddingBag(options.rows, 4, mode="sum", sparse=True, padding_idx=0)

    def batches(shard: int | None, shards: int) -> Iterator[Batch]:
        del shards
        ids = torch.full((build.per_device_batch, 2), 0 if shard == 1 else 3)
        while True:
            yield Batch((ids,), torch.zeros(build.per_device_batch))

    return Problem(
        model=table,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda output, _: output.sum(),
        batches=batches,
        shard_units=lambda _: [],
    )


PADDED = Workload(
    name="padded",
    summary="sparse gradients that one rank never has",
    options=PaddedOptions,
    presets={"tiny": Preset(options=PaddedOptions(), per_device_batch=4, summary="all there is")},
    optimizer="sgd",
    facts=lambda _: Facts(unit="sample", has_sparse_gradients=True),
    build=_build_padded,
)
