"""A workload, looked at by one process: what strategies and proofs rely on."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import msgspec
import torch
from torch import Tensor

from bench.errors import plural
from bench.plan.registry import find_workload
from bench.run.look import NEAR, Looks, copied, distance
from bench.run.rank import Rank
from workloads.base import Batch, Build, Facts, Problem, Workload, concatenate
from workloads.quiet import drawn
from workloads.units import described

SHARDS = 2
CLOSE = 1e-9
"""Relative difference of two losses in fp64 of the same samples."""


def look_at_workload(rank: Rank) -> None:
    """Build the case's workload and train a step of it; what was seen goes to the outcome."""
    rank.note(phase="look at the workload")
    workload = find_workload(rank.case.workload)
    options, batch = workload.for_proof(
        msgspec.convert(rank.case.workload_options, workload.options), rank.case.per_device_batch
    )
    build = Build(
        device=rank.device.torch_device,
        dtype=torch.float64,
        seed=rank.case.seed,
        per_device_batch=max(batch, 2),
        optimizer=rank.case.optimizer,
        is_proof=True,
    )
    seen = _Seen(workload, options, build)
    looks = Looks()
    if looks.take("build", seen.construct):
        looks.take("the seed sets the parameters", seen.seed)
        if looks.take("batches", seen.batches):
            looks.take("shards", seen.shards)
            if looks.take("loss", seen.loss):
                looks.take("loss is a mean", seen.mean)
                looks.take("gradients", seen.gradients)
                looks.take("optimizer", seen.optimizer)
                looks.take("no chance in proofs", seen.chance)
        looks.take("shard units", seen.units)
    rank.note(looks=looks.found)


class _Seen:
    """What was built, and what is right and wrong with it."""

    def __init__(self, workload: Workload, options: Any, build: Build) -> None:
        self._workload = workload
        self._options = options
        self._build = build
        self._problem: Problem | None = None

    @property
    def _built(self) -> Problem:
        assert self._problem is not None, "built first"
        return self._problem

    @property
    def _facts(self) -> Facts:
        return self._workload.facts(self._options)

    def _again(self, **changes: Any) -> Problem:
        return self._workload.build(self._options, dataclasses.replace(self._build, **changes))

    def construct(self) -> str | None:
        """That there is a model with parameters, of the type asked for."""
        self._problem = self._again()
        others = {one.dtype for one in self._problem.model.parameters() if one.is_floating_point()}
        if not any(True for _ in self._problem.model.parameters()):
            return "the model has no parameters: there is nothing to train"
        if others - {torch.float64}:
            return (
                f"parameters are {', '.join(map(str, others))} where build.dtype is float64: pass "
                "dtype=build.dtype to model.to, since proofs train in it"
            )
        if not self._problem.model.training:
            return "the model is in eval mode: call model.train()"
        return None

    def seed(self) -> str | None:
        """That parameters come again with the seed."""
        first, again = (
            copied(problem.model.named_parameters()) for problem in (self._built, self._again())
        )
        if distance(first, again) != 0:
            return (
                "built twice with the same seed, the model has other parameters, and each rank "
                "would have its own: draw them from torch's generator, after "
                "torch.manual_seed(build.seed)"
            )
        return None

    def batches(self) -> str | None:
        """That a batch has the samples that were asked for, and an input's type."""
        batch = next(self._built.batches(0, SHARDS))
        count = self._build.per_device_batch
        for what, tensor in (
            *(("an input", one) for one in batch.inputs),
            ("targets", batch.targets),
        ):
            if tensor.dim() == 0 or len(tensor) != count:
                return (
                    f"{what} of a batch of {count} samples has the shape {tuple(tensor.shape)}: "
                    "dimension 0 counts samples"
                )
            if tensor.is_floating_point() and tensor.dtype != self._build.dtype:
                return f"{what} is {tensor.dtype} where build.dtype is {self._build.dtype}"
            if tensor.device.type != self._build.device.type:
                return f"{what} is on {tensor.device}, not on {self._build.device}"
        return None

    def shards(self) -> str | None:
        """That shards differ, come again with the seed, and make up the whole in their order."""
        first, second = (next(self._built.batches(shard, SHARDS)) for shard in range(SHARDS))
        if _same(first, second):
            return (
                "two shards have the same samples, so that every rank would train on the same: "
                "draw them with a seed of the shard, as workloads.base.cycle_of_batches does"
            )
        if not _same(first, next(self._again().batches(0, SHARDS))):
            return "with the same seed, a shard has other samples the second time"
        whole = next(self._built.batches(None, SHARDS))
        if not _same(whole, concatenate([first, second])):
            return "batches(None, n) must have the samples of all shards, in their order"
        return None

    def loss(self) -> str | None:
        """That it is one finite number."""
        batch = next(self._built.batches(0, SHARDS))
        loss = self._built.loss(self._built.model(*batch.inputs), batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            return f"the loss must be a scalar tensor, not {_shape(loss)}"
        if not math.isfinite(loss.item()):
            return f"the loss of the first batch is {loss.item()}"
        if not loss.requires_grad:
            return "the loss has no gradient: no parameter of the model takes part in it"
        return None

    def mean(self) -> str | None:
        """That ranks' losses average to that of all samples."""
        if self._facts.has_batch_norm:
            return None  # which looks at the whole batch: the loss of parts is another
        parts = [next(self._built.batches(shard, SHARDS)) for shard in range(SHARDS)]
        losses = [self._value(part) for part in parts]
        whole, mean = self._value(concatenate(parts)), sum(losses) / SHARDS
        if abs(whole - mean) <= CLOSE * abs(mean):
            return None
        if abs(whole - sum(losses)) <= CLOSE * abs(whole):
            return (
                "the loss is a sum over the samples, and must be their mean: what ranks average "
                "would be another gradient than that of all samples (reduction='mean')"
            )
        return (
            f"the loss of {SHARDS} batches together is {whole:.6g}, and the mean of theirs "
            f"{mean:.6g}: it must be the mean over the samples"
        )

    def _value(self, batch: Batch) -> float:
        with torch.no_grad():
            return float(self._built.loss(self._built.model(*batch.inputs), batch))

    def gradients(self) -> str | None:
        """That parameters have one where the facts say so."""
        problem = self._again()
        batch = next(problem.batches(0, SHARDS))
        problem.loss(problem.model(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
        trained = [(name, p) for name, p in problem.model.named_parameters() if p.requires_grad]
        unused = [name for name, p in trained if p.grad is None]
        if unused and not self._facts.has_unused_parameters:
            return (
                f"{plural(len(unused), 'parameter')} have no gradient, such as {unused[0]}: use "
                "them, or say has_unused_parameters=True in its facts"
            )
        bad = [n for n, p in trained if p.grad is not None and not _is_finite(p.grad)]
        return f"the gradient of {bad[0]} is not finite" if bad else None

    def optimizer(self) -> str | None:
        """That a step moves the model, the same twice."""
        after = []
        for _ in range(2):
            problem = self._again()
            optimizer = problem.make_optimizer(problem.model.parameters())
            for batch in itertools.islice(problem.batches(0, SHARDS), 2):
                problem.loss(problem.model(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
            after.append(copied(problem.model.named_parameters()))
        if distance(after[0], copied(self._again().model.named_parameters())) == 0:
            return "two steps leave all parameters as they were"
        if distance(*after) > NEAR:
            return (
                "the same two steps, taken twice, end with other parameters: something is drawn at "
                "random, or is not reset"
            )
        return None

    def chance(self) -> str | None:
        """That nothing is drawn at random where ``Build.is_proof`` asks for that."""
        problem = self._again()
        found = drawn(problem.model, problem.loss, lambda: next(problem.batches(0, 1)))
        if found:
            return (
                f"the model draws random numbers in proofs ({found[0]}): where build.is_proof is "
                "true, switch dropout off, as workloads.quiet.quieten does"
            )
        return None

    def units(self) -> str | None:
        """That they lie within the model, and the facts agree."""
        model = self._built.model
        units = self._built.shard_units(model)
        strange = [unit for unit in units if unit not in set(model.modules())]
        if strange:
            return f"shard_units gives a {type(strange[0]).__name__} that is not in the model"
        if bool(units) != self._facts.has_shard_units:
            return (
                f"its facts say has_shard_units={self._facts.has_shard_units}, and shard_units "
                f"gives {described(model, units)}"
            )
        return None


def _same(one: Batch, other: Batch) -> bool:
    pairs = zip((*one.inputs, one.targets), (*other.inputs, other.targets), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def _is_finite(gradient: Tensor) -> bool:
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return bool(dense.isfinite().all())


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"one of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
