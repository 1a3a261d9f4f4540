"""A workload from a plain function: one that returns a model, its loss, and its batches.

The least that somebody must write to have a model of their own measured:

    def vit(width: int = 128):
        model = VisionTransformer(...)
        def batches(samples):
            return torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,))
        return model, nn.functional.cross_entropy, batches

Its arguments are the workload's options. What else planning must know (batch norm, sparse
gradients, unused parameters, units to shard) is seen on the model itself, without content.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from workloads.base import (
    Batch,
    Build,
    Facts,
    Options,
    Preset,
    Problem,
    Task,
    Workload,
    cycle_of_pools,
    optimizer_factory,
)
from workloads.own_batches import OwnSamples, batch_at, is_dataset, pool
from workloads.own_tried import tried_out
from workloads.quiet import META, quieten
from workloads.tasks import endless
from workloads.units import repeated_blocks

PER_DEVICE_BATCH = 8
"""Samples where neither the function nor the suite says how many."""
TOLD = "_parallel_bench"
"""Attribute of a function that ``workload`` has said something about."""
WANTED = "must return (model, loss, batches)"

Make = TypeVar("Make", bound=Callable[..., Any])
Units = Callable[[nn.Module], list[nn.Module]]


class Parts(NamedTuple):
    """What such a function returns."""

    model: nn.Module
    loss: Callable[[Any, Tensor], Tensor]
    """(output of the model, targets) -> scalar: the mean over the batch's samples."""
    batches: Any
    """(samples) -> (inputs, targets), drawn at random; or a data set of such pairs, one a sample.
    Inputs are a tensor, or several: the arguments of the model's forward."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What can be said of such a function beside its arguments."""

    per_device_batch: int = PER_DEVICE_BATCH
    unit: str = "sample"
    units_per_sample: int = 1
    optimizer: Literal["sgd", "adamw"] = "adamw"
    lr: float = 1e-3
    shard_units: Units = repeated_blocks
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    learnable: str | None = None


def workload(  # noqa: PLR0913 - what can be said, each known by its name
    *,
    per_device_batch: int = PER_DEVICE_BATCH,
    unit: str = "sample",
    units_per_sample: int = 1,
    optimizer: Literal["sgd", "adamw"] = "adamw",
    lr: float = 1e-3,
    shard_units: Units = repeated_blocks,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    learnable: str | None = None,
) -> Callable[[Make], Make]:
    """Say more of a function that returns a model, its loss and its batches: a decorator.

    The function stays what it is.

    Args:
        per_device_batch: samples that one device sees in one micro-step, unless a suite says.
        unit: what ``units_per_sample`` counts, such as token.
        units_per_sample: for the tables.
        optimizer: the one that a suite's ``optimizer: auto`` stands for.
        lr: learning rate of either.
        shard_units: (model) -> modules to shard one by one; its repeated blocks by default.
        presets: arguments by name of a preset; the first is the CPU's unless one is called cpu, the
            last that of accelerators unless one is called full.
        learnable: what there is to learn in its batches, in words; None where they are random.
    """
    told = Told(
        per_device_batch=per_device_batch,
        unit=unit,
        units_per_sample=units_per_sample,
        optimizer=optimizer,
        lr=lr,
        shard_units=shard_units,
        presets=presets or {},
        learnable=learnable,
    )

    def tell(make: Make) -> Make:
        setattr(make, TOLD, told)
        return make

    return tell


def workload_of(make: Callable[..., Any], *, name: str) -> Workload:
    """The workload that a function, or a class with ``model``, ``loss`` and ``batches``, makes.

    Args:
        make: called with the workload's options by name.
        name: of the workload.

    Raises:
        TypeError: an argument has no default, or cannot be named.
    """
    told: Told = getattr(make, TOLD, Told())
    kind = options_of(make)
    summary = (inspect.getdoc(make) or f"{name}, of your own").splitlines()[0]
    chosen = told.presets or {"default": {}}

    @functools.cache
    def facts(options: Options) -> Facts:
        return facts_of(parts_without_content(make, options), told)

    return Workload(
        name=name,
        summary=summary,
        options=kind,
        presets={
            preset: Preset(
                options=msgspec.convert(dict(given), kind),
                per_device_batch=told.per_device_batch,
                summary=", ".join(f"{key} {value}" for key, value in given.items()) or "as written",
            )
            for preset, given in chosen.items()
        },
        optimizer=told.optimizer,
        facts=lambda options: facts(_Hashed(options)),
        build=lambda options, build: _problem(make, told, options, build),
    )


class _Hashed:
    """Options that a cache can hold: equal where their content is."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._key = msgspec.json.encode(options, order="deterministic")

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self._key == other._key


def options_of(make: Callable[..., Any]) -> type[Options]:
    """A struct with a field for each argument of a function.

    Raises:
        TypeError: an argument has no default, or cannot be named.
    """
    fields: list[tuple[str, Any, Any]] = []
    for one in _signature(make).parameters.values():
        if one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD}:
            continue
        if one.kind is one.POSITIONAL_ONLY or one.default is one.empty:
            raise TypeError(
                f"the argument {one.name} of {make.__name__} has no default, or cannot be named: "
                "arguments are the workload's options, and a suite may leave each of them out"
            )
        kind = type(one.default) if one.annotation is one.empty else one.annotation
        kind = Any if one.default is None and one.annotation is one.empty else kind
        default = one.default
        if isinstance(default, list | dict | set):
            default = msgspec.field(default_factory=functools.partial(type(default), default))
        fields.append((one.name, kind, default))
    made = msgspec.defstruct(
        f"{make.__name__}_options",
        fields,
        bases=(Options,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(made, Options)
    return made


def _signature(make: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(make, eval_str=True)
    except NameError:  # an annotation that is there for type checkers alone
        return inspect.signature(make)


def parts_of(make: Callable[..., Any], options: Options) -> Parts:
    """Call the function.

    Raises:
        TypeError: it returns something else.
    """
    made = make(**msgspec.structs.asdict(options))
    name = make.__name__
    if isinstance(made, nn.Module):
        raise TypeError(f"{name} {WANTED}, and returns a {type(made).__name__} alone")
    if not isinstance(made, tuple | list):
        missing = [one for one in Parts._fields if not hasattr(made, one)]
        if missing:
            what = "nothing" if made is None else f"a {type(made).__name__}"
            raise TypeError(f"{name} {WANTED}, and returns {what} without {', '.join(missing)}")
        made = tuple(getattr(made, one) for one in Parts._fields)
    if len(made) != len(Parts._fields):
        raise TypeError(f"{name} {WANTED}, and returns {len(made)} things")
    parts = Parts(*made)
    if not isinstance(parts.model, nn.Module):
        raise TypeError(f"{name} {WANTED}; its model is a {type(parts.model).__name__}")
    if not callable(parts.loss):
        raise TypeError(f"{name} {WANTED}; its loss cannot be called: (output, targets) -> scalar")
    what = type(parts.batches).__name__
    is_batch = isinstance(parts.batches, tuple | list) and any(
        isinstance(one, Tensor) for one in parts.batches
    )
    if is_batch:
        what += " of tensors, as one batch is"
    if is_batch or (not callable(parts.batches) and not is_dataset(parts.batches)):
        raise TypeError(
            f"{name} {WANTED}; its batches are a {what}, and must be a function "
            "(samples) -> (inputs, targets), or a data set with a length"
        )
    return parts


def parts_without_content(make: Callable[..., Any], options: _Hashed | Options) -> Parts:
    """The same on torch's meta device, or on the host for a model that must look at its numbers."""
    given = options.options if isinstance(options, _Hashed) else options
    with torch.random.fork_rng(devices=[]):
        try:
            with META:
                return parts_of(make, given)
        except Exception:  # noqa: BLE001 - if it is more than that, it comes again
            return parts_of(make, given)


def facts_of(parts: Parts, told: Told) -> Facts:
    """What planning must know, as the model itself shows it."""
    modules = list(parts.model.modules())
    has_units = bool(told.shard_units(parts.model))
    tried = tried_out(parts.model, parts.loss, parts.batches)
    return Facts(
        unit=told.unit,
        units_per_sample=told.units_per_sample,
        has_batch_norm=any(isinstance(module, _BatchNorm) for module in modules),
        has_sparse_gradients=any(
            isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
            for module in modules
        ),
        has_shard_units=has_units,
        has_unused_parameters=tried.leaves_unused,
        has_tied_parameters=len(list(parts.model.parameters()))
        < len(list(parts.model.named_parameters(remove_duplicate=False))),
        gives_one_tensor=tried.gives_one_tensor,
        samples=tried.samples,
        sample_bytes=tried.sample_bytes,
        sample_count=len(parts.batches) if is_dataset(parts.batches) else None,
        step_problem=tried.problem,
    )


def _problem(make: Callable[..., Any], told: Told, options: Options, build: Build) -> Problem:
    torch.manual_seed(build.seed)
    parts = parts_of(make, options)
    model = parts.model.to(device=build.device, dtype=build.dtype).train()

    def loss(output: Any, batch: Batch) -> Tensor:
        return parts.loss(output, batch.targets)

    batches = cycle_of_pools(functools.partial(pool, parts.batches, build))
    if build.is_proof:
        quieten(model, loss, lambda: next(batches(0, 1)))
    return Problem(
        model=model,
        make_optimizer=optimizer_factory(
            build.optimizer, lr=told.lr, kernels=build.optimizer_kernels
        ),
        loss=loss,
        batches=batches,
        shard_units=told.shard_units,
        units_per_sample=told.units_per_sample,
        samples=OwnSamples(parts.batches, build.seed),
        task=_task(parts.batches, told.learnable, build),
    )


def _task(source: Any, what: str | None, build: Build) -> Task | None:
    """Its own batches, drawn anew for each step, where they are said to be learnable."""
    if what is None:
        return None
    return Task(what=what, batches=endless(functools.partial(batch_at, source, build)))
