"""One optimizer step of a strategy, looked at from inside of its ranks, in fp64.

The proofs of a run say that something is wrong; this says what, as far as it is one of the mistakes
that are made when a model is wrapped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

from bench.errors import plural
from bench.run.look import NEAR, Looks, Tensors, copied, distance, mean, names_differ, scaled
from bench.run.rank import Rank
from bench.strategies.base import Session
from bench.strategies.module_session import ModuleSession
from workloads.base import Batch, Problem

COLLECTIVE = ("gloo:", "nccl:", "c10d::")
"""Beginnings of the names of what communicates, in a profile."""


def look_at_strategy(rank: Rank) -> Session | None:
    """Prepare the case's workload and take a step; what was seen goes to the outcome."""
    rank.note(phase="look at the strategy")
    looks = Looks()
    made: list[list[int]] = []
    problem = _recording(rank.problem_for_proof(dtype=torch.float64), made)
    wanted = [name for name, _ in problem.model.named_parameters()]
    sessions: list[Session] = []

    def prepare() -> str | None:
        sessions.append(rank.session(problem, exact=True))
        return None

    if not looks.take("prepare", prepare):
        rank.note(looks=looks.found)
        return None
    (session,) = sessions
    looks.take("optimizer", lambda: _optimizer(session, problem, made))
    looks.take(
        "parameters by name",
        lambda: names_differ(
            (name for name, _ in session.full_parameters()), wanted, "full_parameters"
        ),
    )
    before = copied(session.full_parameters())
    step = _Step(rank, session, problem)
    if looks.take("micro_step", step.take):
        looks.take("collectives", step.collectives)
        if _averages(rank):
            looks.take("gradients", step.gradients)
        looks.take("optimizer_step", lambda: step.update(before))
        looks.take("ranks agree", step.agreement)
        looks.take("held_bytes", lambda: _held(session, rank.driven))
    rank.note(looks=looks.found)
    return session


def _recording(problem: Problem, made: list[list[int]]) -> Problem:
    """The same problem, which notes the parameters that optimizers were made of."""

    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        optimizer = problem.make_optimizer(parameters)
        groups = optimizer.param_groups
        made.append([id(one) for group in groups for one in group["params"]])
        return optimizer

    return dataclasses.replace(problem, make_optimizer=make)


def _averages(rank: Rank) -> bool:
    """Whether the first gradient is to be the mean over the samples of all ranks."""
    options = rank.options
    return (
        rank.exactness.kind == "exact"
        and rank.strategy.reference(options) == "micro_batches"
        and rank.rhythm.settle_steps == 0
    )


def _optimizer(session: Session, problem: Problem, made: list[list[int]]) -> str | None:
    """Whether what updates the parameters was made by the workload, of the model's parameters."""
    if not made:
        return (
            "prepare never calls problem.make_optimizer, so that another optimizer trains than on "
            "one device"
        )
    held = {one for parameters in made for one in parameters}
    if isinstance(session, ModuleSession):
        groups = session.optimizer.param_groups
        held |= {id(one) for group in groups for one in group["params"]}
    trained = [(name, one) for name, one in problem.model.named_parameters() if one.requires_grad]
    missing = [name for name, one in trained if id(one) not in held]
    if missing and isinstance(session, ModuleSession):
        return (
            f"the optimizer does not hold {len(missing)} of the {len(trained)} parameters that the "
            f"model has now, such as {missing[0]}: it was made before the model was wrapped, which "
            "gave it other parameters; call problem.make_optimizer after wrapping"
        )
    return None


def _held(session: Session, devices: int) -> str | None:
    held = session.held_bytes()
    if len(held) != devices:
        return f"held_bytes gives {len(held)} mappings for {plural(devices, 'device')}"
    lacking = {"parameters", "buffers", "optimizer_state"} - held[0].keys()
    return f"held_bytes lacks {', '.join(sorted(lacking))}" if lacking else None


class _Step:
    """One optimizer step of one micro-step, and what can be seen of it."""

    def __init__(self, rank: Rank, session: Session, problem: Problem) -> None:
        self._rank = rank
        self._session = session
        self._batches = rank.batches(problem)
        self._profile = profile(activities=[ProfilerActivity.CPU])

    def take(self) -> str | None:
        """Forward, loss and backward."""
        marks: list[str] = []
        with self._profile:
            loss = self._session.micro_step(next(self._batches), sync=True, mark=marks.append)
            # Of the last collective, which may be carried out by another thread.
            self._rank.device.synchronize()
        if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.requires_grad:
            return "micro_step must return the loss as a detached scalar: loss.detach()"
        lacking = [one for one in ("forward", "backward") if one not in marks]
        if lacking:
            return (
                f"micro_step never calls mark({lacking[0]!r}), so that its phases cannot be told: "
                "call it when that part has ended"
            )
        return None

    def collectives(self) -> str | None:
        """Whether a step communicates as the strategy says."""
        strategy, world_size = self._rank.strategy, self._rank.case.world_size
        events = self._profile.events() or ()  # type: ignore[no-untyped-call]
        found = sorted({one.name for one in events if one.name.startswith(COLLECTIVE)})
        if strategy.processes == "one" or world_size == 1:
            return None
        if strategy.communicates and not found:
            return (
                "the strategy says communicates=True, and its step has no collective: nothing "
                "that one rank learns reaches the others"
            )
        if found and not strategy.communicates:
            return f"the strategy says communicates=False, and its step has {', '.join(found)}"
        return None

    def gradients(self) -> str | None:
        """Whether they are those of all ranks' samples, averaged; and what else they may be."""
        given = copied(self._session.full_gradients())
        parts = [_alone(self._rank, shard) for shard in range(self._rank.case.world_size)]
        wanted = mean(parts)
        problem = names_differ(given, wanted, "full_gradients")
        if problem is not None:
            return problem
        if distance(given, wanted) <= NEAR:
            return None
        for candidate, words in _mistakes(self._rank, parts, wanted):
            if distance(given, candidate) <= NEAR:
                return words
        off = {name: distance({name: given[name]}, {name: wanted[name]}) for name in wanted}
        wrong = [name for name, error in off.items() if error > NEAR]
        worst = max(off, key=lambda name: off[name])
        return (
            f"{len(wrong)} of {len(off)} gradients are not the mean over all ranks' samples; that "
            f"of {worst} is off by {off[worst]:.1e} of its size"
        )

    def update(self, before: Tensors) -> str | None:
        """Whether the optimizer's step moves the parameters, and leaves no gradient behind."""
        self._session.optimizer_step()
        after = copied(self._session.full_parameters())
        if distance(after, before) == 0:
            return (
                "optimizer_step leaves all parameters as they were: the optimizer holds others "
                "than the model, or none has a gradient"
            )
        if isinstance(self._session, ModuleSession):
            model = self._session.problem.model
            left = [name for name, one in model.named_parameters() if _is_left(one.grad)]
            if left:
                return (
                    f"optimizer_step leaves the gradient of {left[0]}, to which the next step's is "
                    "added: end it with optimizer.zero_grad()"
                )
        return None

    def agreement(self) -> str | None:
        """Whether all ranks have the same parameters after a step."""
        if self._rank.processes == 1 or self._rank.exactness.kind == "local":
            return None
        worst, where = 0.0, ""
        for name, parameter in self._session.full_parameters():
            own = parameter.cpu()
            first = own.clone()
            distributed.broadcast(first, src=0)
            difference = float((own - first).abs().max()) if own.numel() else 0.0
            if not difference <= worst:
                worst, where = difference, name
        if where:
            return (
                f"after one step ranks differ: {where} is {worst:.1e} apart, so that each of them "
                "trains a model of its own"
            )
        return None


def _is_left(gradient: Tensor | None) -> bool:
    local = getattr(gradient, "_local_tensor", gradient)
    return isinstance(local, Tensor) and bool(local.any())


def _alone(rank: Rank, shard: int) -> Tensors:
    """The gradient of one shard's samples, as one device has it."""
    problem = rank.problem_for_proof(dtype=torch.float64, plain=True)
    batch: Batch = next(problem.batches(shard, rank.case.world_size))
    problem.loss(problem.model(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
    return copied(
        (name, one.grad) for name, one in problem.model.named_parameters() if one.grad is not None
    )


def _mistakes(rank: Rank, parts: list[Tensors], wanted: Tensors) -> Iterator[tuple[Tensors, str]]:
    """Gradients that a usual mistake leads to, with the mistake in words."""
    world_size = rank.case.world_size
    if world_size == 1:
        return
    if rank.strategy.processes == "per_device":
        yield (
            parts[rank.rank],
            "each rank keeps the gradient of its own samples: it is never averaged over the ranks "
            "(a collective is missing, or forward goes past the wrapper)",
        )
    yield (
        scaled(wanted, world_size),
        "gradients are the sum over the ranks, and must be their mean: divide by world_size",
    )
    yield (
        scaled(wanted, 1 / world_size),
        "gradients are divided by world_size once too often",
    )
    yield parts[0], "all ranks have the gradient of the first rank's samples: others are lost"
