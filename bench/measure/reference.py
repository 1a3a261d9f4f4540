"""What one device trains: what a strategy is compared with.

The reference trains on the micro-batches of all ranks one by one and averages their gradients, so
that batch norm sees what each rank saw; or on the whole batch, for strategies whose batch norm
does so too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from workloads.base import Batch, Problem, concatenate

Tensors = dict[str, Tensor]
Region = Callable[[], AbstractContextManager[object]]
"""Makes the region that forward runs in, such as autocast."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far training goes apart that begins with every parameter one rounding off.

    Some models amplify that beyond measure: the loss of ResNet-152 (tiny) under AdamW was off by
    2e-11 in the first step, by 1e-4 in the second, and by 4e-2 in the third.
    """

    losses: list[float] = field(default_factory=list)
    """Change of each step's loss."""
    final: dict[str, float] = field(default_factory=dict)
    """Norm of the change of each parameter after the last step."""
    buffers: dict[str, float] = field(default_factory=dict)
    """Likewise of each buffer."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What one device did, with gradients as means over the global batch."""

    losses: list[float]
    """Mean loss of each step, in fp64."""
    first: Tensors
    """First gradient in fp64."""
    final: Tensors
    """Parameters after the last step in fp64."""
    moved: dict[str, float]
    """Norm of each parameter's way from the first to the last."""
    native: Tensors
    """First gradient in the case's own precision."""
    spread: dict[str, float]
    """Largest norm of a tensor's change under reordering, in the case's own precision."""
    rounding_spread: dict[str, float] = field(default_factory=dict)
    """Norm of a tensor's change when every parameter is off by one rounding, likewise."""
    scale: float = 1.0
    """Of the loss of each rank's micro-batches, in the case's own precision."""
    settled: Tensors = field(default_factory=dict)
    """Gradient of a later step in fp64, for a strategy that takes steps to settle; else empty."""
    buffers: Tensors = field(default_factory=dict)
    """Buffers after the last step in fp64, as the first rank's samples alone have left them."""
    buffers_moved: dict[str, float] = field(default_factory=dict)
    """Norm of each buffer's way from the first to the last."""
    drift: Drift = field(default_factory=Drift)
    """Of the training in fp64."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What training in fp64 left: the fields of the same names of ``Reference``."""

    losses: list[float]
    first: Tensors
    final: Tensors
    moved: dict[str, float]
    settled: Tensors
    buffers: Tensors
    buffers_moved: dict[str, float]


def train_reference(
    problem: Problem,
    step_batches: Iterator[list[Batch]],
    steps: int,
    *,
    settle_steps: int = 0,
    accumulation_steps: int = 1,
) -> Trained:
    """Train on one device in fp64.

    Args:
        problem: with its initial parameters.
        step_batches: per step, its micro-batches: those of all ranks, micro-step by micro-step.
        steps: optimizer steps.
        settle_steps: after which one more gradient is kept, where there are any.
        accumulation_steps: micro-steps of each rank. Buffers follow the first rank's samples: it is
            the one whose buffers DDP broadcasts, and DataParallel keeps.
    """
    parameters = dict(problem.model.named_parameters())
    initial = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    first_buffers = copy_buffers(problem.model.named_buffers())
    optimizer = problem.make_optimizer(parameters.values())
    losses: list[float] = []
    kept: dict[int, Tensors] = {}
    for step, batches in enumerate(itertools.islice(step_batches, steps)):
        ranks = len(batches) // accumulation_steps
        losses.append(accumulate(problem, batches, buffers_of_every=ranks))
        if step in {0, settle_steps}:
            kept[step] = copy_gradients(parameters.items())
        optimizer.step()
        optimizer.zero_grad()
    final = {name: parameter.detach().cpu() for name, parameter in parameters.items()}
    moved = {name: norm(parameters[name].detach() - initial[name]) for name in parameters}
    buffers = copy_buffers(problem.model.named_buffers())
    return Trained(
        losses=losses,
        first=kept[0],
        final=final,
        moved=moved,
        settled=kept[settle_steps] if settle_steps > 0 else {},
        buffers=buffers,
        buffers_moved={name: norm(change(buffers[name], first_buffers[name])) for name in buffers},
    )


def drift_of(trained: Trained, nudged: Trained) -> Drift:
    """How far two trainings have gone apart."""
    return Drift(
        losses=[abs(a - b) for a, b in zip(trained.losses, nudged.losses, strict=True)],
        final=_distances(trained.final, nudged.final),
        buffers=_distances(trained.buffers, nudged.buffers),
    )


def _distances(tensors: Tensors, others: Tensors) -> dict[str, float]:
    return {name: norm(change(tensor, others[name])) for name, tensor in tensors.items()}


def accumulate(
    problem: Problem,
    batches: list[Batch],
    region: Region = contextlib.nullcontext,
    *,
    scale: float = 1.0,
    buffers_of_every: int = 1,
) -> float:
    """Add the gradient of the batches' mean loss to the parameters, which have none; returns it.

    Args:
        problem: whose model to use.
        batches: of one optimizer step.
        region: that forward runs in.
        scale: of the loss during backward, taken out of the gradients again: a power of two.
        buffers_of_every: the first of so many batches leaves its mark on the model's buffers, and
            the others do not.
    """
    total = 0.0
    for index, batch in enumerate(batches):
        is_marked = index % buffers_of_every == 0
        with contextlib.nullcontext() if is_marked else _buffers_kept(problem.model):
            with region():
                loss = problem.loss(problem.model(*batch.inputs), batch)
            (loss / len(batches) * scale).backward()  # type: ignore[no-untyped-call]
        total += loss.item() / len(batches)
    if scale != 1:
        for parameter in problem.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1 / scale)
    return total


@contextlib.contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Leave the model's buffers as they were."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    for buffer, value in before:
        buffer.copy_(value)


def take_step(problem: Problem, gradients: Iterable[tuple[str, Tensor]]) -> Tensors:
    """Parameters after one step of a problem's optimizer with gradients that come from elsewhere.

    Args:
        problem: with the parameters before.
        gradients: whole ones by name; dropped again as soon as they are used.
    """
    parameters = dict(problem.model.named_parameters())
    optimizer = problem.make_optimizer(parameters.values())
    for name, gradient in gradients:
        parameters[name].grad = gradient.detach().to(parameters[name], copy=True)
    optimizer.step()
    optimizer.zero_grad()
    return {name: parameter.detach().cpu() for name, parameter in parameters.items()}


def copy_buffers(buffers: Iterable[tuple[str, Tensor]]) -> Tensors:
    """Tensors by name, copied to the host in fp64, whatever they count."""
    return {name: buffer.detach().to("cpu", torch.float64) for name, buffer in buffers}


def copy_gradients(parameters: Iterable[tuple[str, Tensor]]) -> Tensors:
    """Tensors by name, copied to the host; parameters without one are left out."""
    return {
        name: dense(parameter.grad.detach()).cpu().clone()
        for name, parameter in parameters
        if parameter.grad is not None
    }


def dense(tensor: Tensor) -> Tensor:
    """The same values with all zeros written out."""
    return tensor.to_dense() if tensor.is_sparse else tensor


def step_batches(
    problem: Problem,
    *,
    shards: int,
    accumulation_steps: int,
    whole: bool,
) -> Iterator[list[Batch]]:
    """Per optimizer step, the micro-batches that all ranks together would see.

    Args:
        problem: whose batches to use.
        shards: number of ranks.
        accumulation_steps: micro-steps of each rank.
        whole: put what the ranks see at the same time into one batch.
    """
    streams = [problem.batches(shard, shards) for shard in range(shards)]
    while True:
        rounds = [[next(stream) for stream in streams] for _ in range(accumulation_steps)]
        if whole:
            yield [concatenate(batches) for batches in rounds]
        else:
            yield [batch for batches in rounds for batch in batches]


def change(tensor: Tensor, other: Tensor) -> Tensor:
    """Their difference, 0 where they are equal: infinities too, such as those of a mask."""
    return torch.where(tensor == other, 0, tensor - other)


def norm(tensor: Tensor) -> float:
    """Euclidean norm, summed in fp64."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def save_reference(path: Path, reference: Reference) -> None:
    """Write a reference for the ranks that will compare with it."""
    fields = {one.name: getattr(reference, one.name) for one in dataclasses.fields(reference)}
    torch.save(fields | {"drift": dataclasses.asdict(reference.drift)}, path)


def load_reference(path: Path) -> Reference:
    """Read what ``save_reference`` wrote."""
    fields = torch.load(path, weights_only=True, mmap=True)
    return Reference(**fields | {"drift": Drift(**fields["drift"])})
