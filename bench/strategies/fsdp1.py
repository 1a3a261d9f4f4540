"""``FullyShardedDataParallel`` (FSDP1): what FSDP2 replaces, and many programs still use.

The parameters of a unit are one flat tensor, which is padded and cut into equal parts. Zhao et al.,
"PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", 2023.
"""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import CustomPolicy

from bench.plan.case import Case, Machine
from bench.strategies import groups, sharding
from bench.strategies.base import Context, Session, Strategy
from bench.strategies.module_session import ModuleSession
from bench.strategies.saving import Saving, State, take
from bench.strategies.sharding import Narrow
from workloads.base import Facts, Problem

SHARDING = {
    "full_shard": ShardingStrategy.FULL_SHARD,
    "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "no_shard": ShardingStrategy.NO_SHARD,
}
HYBRID = {
    "full_shard": ShardingStrategy.HYBRID_SHARD,
    "shard_grad_op": ShardingStrategy._HYBRID_SHARD_ZERO2,
}
EXPECTED = (
    # Asked for by name, and told apart from DDP in every table.
    (FutureWarning, "The `NO_SHARD` sharding strategy is deprecated"),
    # The batch norms of ``mixed_precision``: said in the option's own text.
    (UserWarning, "Both mixed precision and an auto_wrap_policy were specified to FSDP"),
)
"""What torch warns of while it wraps a model, although it is meant."""


class FSDP1Options(sharding.ShardingOptions, frozen=True, kw_only=True):
    """Settings of ``fsdp1``. A default is not passed to torch, but for ``use_orig_params``."""

    sharding_strategy: Literal["full_shard", "shard_grad_op", "no_shard"] = "full_shard"
    """What is sharded: parameters, gradients and optimizer state; with shard_grad_op, parameters
    only outside of forward and backward; with no_shard nothing, which is DDP by other means, and
    deprecated. Helps shard_grad_op to save the second all-gather. Costs shard_grad_op and no_shard
    the memory of a whole model."""
    mixed_precision: Narrow | None = None
    """FSDP's own mixed precision, in place of autocast, with ``precision`` of the same type: shards
    stay in fp32, and each unit is gathered, computed and reduced in this type. Batch norms stay in
    fp32, each as a unit of its own. Helps by halving what is communicated. Costs norms, softmax and
    loss the digits that autocast keeps, and models with batch norm many small collectives."""


MAY_BE_NARROW = hasattr(torch.Tensor, "grad_dtype")
"""Whether a parameter may be told that its gradient is of another type."""


def check(facts: Facts, case: Case, machine: Machine) -> str | None:
    """Whether the workload can be sharded as the options say."""
    del machine
    if (reason := sharding.check(facts, case)) is not None:
        return reason
    if case.options["sharding_strategy"] == "no_shard" and case.options["shard_size"] is not None:
        return "no_shard leaves nothing for a shard_size to split; use full_shard or shard_grad_op"
    is_whole = case.options["sharding_strategy"] == "no_shard" or case.world_size == 1
    is_narrow = case.options["mixed_precision"] is not None
    if is_whole and is_narrow and facts.has_tied_parameters and not MAY_BE_NARROW:
        return (
            "before torch 2.10 whole gradients in a narrow type fail where a parameter is used "
            "twice, as in this model; use mixed_precision: null, or a later torch"
        )
    return None


def _sharded_scaler(context: Context) -> GradScaler:
    """FSDP's own: ranks hold different gradients, and skip a step if any of them must."""
    return ShardedGradScaler(context.device.type, init_scale=context.initial_scale)


def flags(facts: Facts, case: Case) -> Sequence[str]:
    """What must be said of its figures: it lets few gathers be under way, and waits for them."""
    del facts
    return [*sharding.flags(case), *(["host_waits"] if case.device != "cpu" else [])]


def saving(options: Mapping[str, Any], world_size: int) -> Saving:
    """Whole where nothing is sharded, which torch's functions do not save as shards."""
    if world_size == 1 or options["sharding_strategy"] == "no_shard":
        return Saving(form="whole")
    return sharding.saving(options, world_size)


def prepare(problem: Problem, context: Context) -> Session:
    """Wrap each unit and the root; then build the optimizer over the shards."""
    options: FSDP1Options = context.options
    model = problem.model
    names: dict[Tensor, str] = {one: name for name, one in model.named_parameters()}
    sizes = sharding.whole_bytes(model)
    units = set(sharding.units_of(problem, options.wrap))
    with warnings.catch_warnings():
        for category, message in EXPECTED:
            warnings.filterwarnings("ignore", message, category)
        module = FullyShardedDataParallel(
            model,
            auto_wrap_policy=CustomPolicy(lambda part: part in units),
            device_id=context.device,  # without one it refuses a model on a CPU
            use_orig_params=True,  # else the optimizer sees flat tensors, and no parameter's own
            **_arguments(context),
        )
    casts_itself = sharding.narrow_type(context) is not None
    if casts_itself:
        _allow_narrow_gradients(module)
    wrappers = FullyShardedDataParallel.fsdp_modules(module)  # outer ones first
    buckets = sharding.own_bytes(([one] for one in reversed(wrappers)), sizes)
    return FSDP1Session(
        problem=problem,
        context=context,
        module=module,
        make_scaler=_sharded_scaler,
        optimizer=problem.make_optimizer(module.parameters()),
        unsynchronised=module.no_sync,
        steps_together=True,  # whole gradients fit no shard
        read_buckets=lambda: buckets,
        casts_itself=casts_itself,
        wrappers=wrappers,
        names=names,
    )


def _allow_narrow_gradients(module: nn.Module) -> None:
    """Of parameters that are used more than once, as tied embeddings are.

    In a step without synchronisation a whole gradient stays in the type of computation. torch
    (2.14) goes around its own check of types when it hands that to the parameter, and runs into it
    when it hands it to the parameter's second use.
    """
    uses = collections.Counter(one for _, one in module.named_parameters(remove_duplicate=False))
    for parameter, count in uses.items():
        if count > 1:
            parameter.grad_dtype = None


def _arguments(context: Context) -> dict[str, Any]:
    """What the options ask for beyond torch's defaults."""
    options: FSDP1Options = context.options
    arguments: dict[str, Any] = {}
    if (narrow := sharding.narrow_type(context)) is not None:
        arguments["mixed_precision"] = MixedPrecision(
            param_dtype=narrow, reduce_dtype=sharding.reduce_type(context)
        )
    if context.world_size == 1:  # torch changes to it by itself, with a warning
        arguments["sharding_strategy"] = ShardingStrategy.NO_SHARD
    elif options.shard_size is not None:
        replicas, shards = groups.make_groups(options.shard_size, context.world_size)
        arguments["sharding_strategy"] = HYBRID[options.sharding_strategy]
        arguments["process_group"] = (shards, replicas)
    elif options.sharding_strategy != "full_shard":
        arguments["sharding_strategy"] = SHARDING[options.sharding_strategy]
    return arguments


WRAPPED = "_fsdp_wrapped_module."
"""What a wrapper adds to the names of all that is within it."""


@dataclass(kw_only=True)
class FSDP1Session(ModuleSession):
    """Session of a model whose parameters are views of flat shards."""

    wrappers: list[FullyShardedDataParallel]
    names: dict[Tensor, str]
    """Of each parameter in the model as it was: the wrappers add parts of their own."""

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        for name, parameter in self._whole(grads=False):
            yield name, parameter.detach().clone()

    def full_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        self.unscale()
        for name, parameter in self._whole(grads=True):
            if parameter.grad is not None:
                yield name, parameter.grad.clone()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        for name, buffer in super().named_buffers():
            yield name.replace(WRAPPED, ""), buffer

    def saved_module(self) -> nn.Module:
        """See ``ModuleSession``: the outermost wrapper."""
        return self.wrappers[0]

    def take_state(self, *, whole: bool, with_optimizer: bool) -> State:
        """See ``SavedSession``.

        On a CPU nothing is moved to the host, since torch (2.14) then takes no copy: all
        of an optimizer's states would be the last one that was gathered.
        """
        offload = self.context.device.type != "cpu"
        optimizer = self.optimizer if with_optimizer else None
        state = take(self.saved_module(), optimizer, whole=whole, offload=offload)
        return self.with_loss_scale({} if whole and self.context.rank else state)

    def close(self) -> None:
        """See ``Session``: every wrapper holds the group."""
        super().close()
        self.wrappers = []

    def _whole(self, *, grads: bool) -> Iterator[tuple[str, nn.Parameter]]:
        """Each parameter once, while the flat tensor that holds it is whole; one unit at a time.

        Afterwards its memory is free again, so that what is kept must be a copy.
        """
        left = dict(self.names)
        for wrapper in reversed(self.wrappers):
            summon = FullyShardedDataParallel.summon_full_params(
                wrapper, recurse=False, writeback=False, with_grads=grads
            )
            with contextlib.ExitStack() as stack:
                stack.enter_context(summon)
                for parameter in wrapper.parameters():
                    name = left.pop(parameter, None)
                    if name is not None:
                        yield name, parameter
        assert not left, f"{', '.join(left.values())} belong to no wrapper"


STRATEGIES = (
    Strategy(
        name="fsdp1",
        summary="FullyShardedDataParallel (FSDP1): the same by flat tensors, one a unit",
        processes="per_device",
        communicates=True,
        can_skip_sync=True,
        shards_gradients=True,
        options=FSDP1Options,
        casts=sharding.casts,
        group_sizes=sharding.group_sizes,
        saving=saving,
        flags=flags,
        check=check,
        prepare=prepare,
    ),
)
