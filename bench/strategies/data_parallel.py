"""``DataParallel``: one process drives all devices, a thread for each.

In every step the first device broadcasts its parameters and buffers, scatters the batch, gathers
the outputs, computes the loss, and adds up the gradients; it alone has an optimizer.

On a CPU torch's class finds no devices and silently runs the plain module. There, the algorithm
is carried out on sets of cores, one for each device, by ``ReplicaSession``: a reference, not
torch's own code, and flagged as that wherever it is shown.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.plan.case import Case, Machine
from bench.strategies.base import Context, Mark, Session, Strategy
from bench.strategies.module_session import (
    ModuleSession,
    addresses,
    autocast,
    local_bytes,
    moving,
    on_device,
)
from workloads.base import Batch, Facts, Problem


def flags(facts: Facts, case: Case) -> Sequence[str]:
    """On a CPU, that it is not torch's class."""
    del facts
    return ["reference_implementation"] if case.device == "cpu" else []


def check(facts: Facts, case: Case, machine: Machine) -> str | None:
    """It runs everywhere, but only uncompiled, and on devices with every parameter in use."""
    del machine
    if not facts.gives_one_tensor and case.device == "cpu":
        return "dp on a CPU can gather one tensor only, and the model gives several"
    if facts.has_unused_parameters and case.device != "cpu" and case.world_size > 1:
        return (
            "DataParallel gives parameters that no step uses a gradient of zeros, which the"
            " optimizer then takes; use ddp with find_unused_parameters"
        )
    if case.compile != "none":
        return (
            "DataParallel makes new replicas in every step, and what was compiled for one serves"
            " no other; use ddp, or compile: none"
        )
    return None


def prepare(problem: Problem, context: Context) -> Session:
    """Make torch's class on accelerators, the reference of its algorithm on a CPU."""
    optimizer = problem.make_optimizer(problem.model.parameters())
    if context.device.type == "cpu":
        if context.world_size == 1:  # torch's class, too, calls the module as it is
            return ModuleSession(
                problem=problem, context=context, module=problem.model, optimizer=optimizer
            )
        return ReplicaSession(
            problem=problem,
            context=context,
            module=problem.model,
            optimizer=optimizer,
            replicas=_replicas(problem.model, context.world_size),
            threads=_threads(context),
        )
    module = nn.DataParallel(
        _InAutocast(problem.model, context), device_ids=list(range(context.world_size))
    )
    return _TorchSession(problem=problem, context=context, module=module, optimizer=optimizer)


class _TorchSession(ModuleSession):
    """Torch's class, whose replicas live for the length of a step only."""

    def held_bytes(self) -> list[dict[str, int]]:
        (first,) = super().held_bytes()
        return [first, *[dict.fromkeys(first, 0) for _ in range(1, self.context.world_size)]]


class _InAutocast(nn.Module):
    """The model in a region of its own: torch's threads of replicas fall back to fp16 otherwise."""

    def __init__(self, model: nn.Module, context: Context) -> None:
        super().__init__()
        self.model = model
        self.context = context

    def forward(self, *inputs: Tensor) -> Any:
        with autocast(self.context):
            return self.model(*inputs)


def _held(replica: nn.Module) -> dict[str, list[Tensor]]:
    parameters = list(replica.parameters())
    return {
        "parameters": [*parameters],
        "buffers": list(replica.buffers()),
        "gradients": [one.grad for one in parameters if one.grad is not None],
    }


def _replicas(model: nn.Module, count: int) -> list[nn.Module]:
    replicas = [model]
    for index in range(1, count):
        with on_device(index):
            replicas.append(copy.deepcopy(model))
    return replicas


def _threads(context: Context) -> list[ThreadPoolExecutor]:
    if context.one_thread:
        return []
    return [
        ThreadPoolExecutor(1, f"replica{index}", context.enter_device, (index,))
        for index in range(context.world_size)
    ]


@dataclass(kw_only=True)
class ReplicaSession(ModuleSession):
    """The algorithm of ``DataParallel`` on sets of cores.

    What moves between devices is marked as a part of its phase, and named in a profile.
    """

    replicas: list[nn.Module]
    """One for each device; the first is the model itself."""
    threads: list[ThreadPoolExecutor]
    """For each replica an executor of one thread, which stays on the replica's device; empty where
    all is to be done in the calling thread."""

    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        """See ``Session``; every micro-step broadcasts and reduces, as torch's class does."""
        del sync
        self._broadcast()
        mark("forward.broadcast")
        shares = self._scatter(batch.inputs)
        mark("forward.scatter")
        outputs = self._on_all(self._forward, shares)
        mark("forward")
        gathered = self._gather(outputs)
        mark("forward.gather")
        with autocast(self.context):
            loss = self.problem.loss(gathered, batch)
        mark("forward")
        self.backward(loss)
        mark("backward")
        gradients = self._scatter([gathered.grad])
        mark("backward.scatter")
        self._on_all(_backward, list(zip(outputs, gradients, strict=True)))
        mark("backward")
        self._reduce()
        mark("backward.reduce")
        return loss.detach()

    def held_bytes(self) -> list[dict[str, int]]:
        """See ``Session``: all but the first hold a copy of the model only."""
        copies = [
            {
                "parameters": local_bytes(replica.parameters()),
                "buffers": local_bytes(replica.buffers()),
                "optimizer_state": 0,
            }
            for replica in self.replicas[1:]
        ]
        return [*super().held_bytes(), *copies]

    def held_addresses(self) -> dict[int, str]:
        """See ``Session``; of all devices, whose allocations are told apart elsewhere."""
        copies = {
            address: name
            for replica in self.replicas[1:]
            for name, tensors in _held(replica).items()
            for address in addresses(tensors)
        }
        return super().held_addresses() | copies

    def close(self) -> None:
        """See ``Session``."""
        super().close()
        for thread in self.threads:
            thread.shutdown()

    def _on_all(self, work: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
        """Call for each replica in its thread; raises what any of them raised."""
        if not self.threads:
            results = []
            for index, argument in enumerate(arguments):
                with on_device(index):
                    results.append(work(index, argument))
            return results
        calls = [
            thread.submit(work, index, argument)
            for index, (thread, argument) in enumerate(zip(self.threads, arguments, strict=True))
        ]
        return [call.result() for call in calls]

    @torch.no_grad()
    def _broadcast(self) -> None:
        source = [*self.problem.model.parameters(), *self.problem.model.buffers()]
        with moving("broadcast", source):
            for replica in self.replicas[1:]:
                target = [*replica.parameters(), *replica.buffers()]
                for own, new in zip(target, source, strict=True):
                    own.copy_(new)

    def _scatter(self, tensors: Sequence[Tensor | None]) -> list[list[Tensor]]:
        """Per replica, its samples of each tensor: the first's in place, the others copied."""
        assert all(tensor is not None for tensor in tensors)
        whole = [tensor for tensor in tensors if tensor is not None]
        shares: list[list[Tensor]] = []
        with moving("scatter", whole):
            parts = [tensor.chunk(len(self.replicas)) for tensor in whole]
            for index in range(len(self.replicas)):
                with on_device(index):
                    own = [part[index] for part in parts]
                    shares.append([part.clone() for part in own] if index else own)
        return shares

    def _forward(self, index: int, inputs: list[Tensor]) -> Tensor:
        with autocast(self.context):
            output: Tensor = self.replicas[index](*inputs)
        if not isinstance(output, Tensor):
            raise TypeError(f"dp on a CPU can gather one tensor only, not {type(output).__name__}")
        return output

    def _gather(self, outputs: list[Tensor]) -> Tensor:
        """All outputs on the first device, as a leaf: backward goes on in the replicas' threads."""
        with moving("gather", outputs):
            return torch.cat([output.detach() for output in outputs]).requires_grad_()

    @torch.no_grad()
    def _reduce(self) -> None:
        model = self.problem.model
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        with moving("reduce", gradients):
            for replica in self.replicas[1:]:
                pairs = zip(model.parameters(), replica.parameters(), strict=True)
                for own, other in pairs:
                    if own.grad is None:
                        own.grad = other.grad
                    elif other.grad is not None:
                        own.grad.add_(other.grad)
                replica.zero_grad()


def _backward(index: int, pair: tuple[Tensor, list[Tensor]]) -> None:
    del index
    output, (gradient,) = pair
    torch.autograd.backward(output, gradient)


STRATEGIES = (
    Strategy(
        name="dp",
        summary="DataParallel: one process, a thread a device; on a CPU, its algorithm",
        processes="one",
        communicates=True,
        flags=flags,
        check=check,
        prepare=prepare,
    ),
)
