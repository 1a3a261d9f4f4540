"""``deepspeed``: ZeRO stages 0 to 3 of DeepSpeed itself, whose engine owns backward and step.

Stage 0 all-reduces gradients; stage 1 shards the optimizer's state over the devices, stage 2 the
gradients too, stage 3 the parameters as well. Rajbhandari et al., "ZeRO: Memory Optimizations
Toward Training Trillion Parameter Models", 2020.

The package is an extra. It takes hold of a device as it is imported, so that only the ranks of a
case import it, once they own theirs; planning merely asks whether it is there.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

from bench.measure.precision import AUTOCAST
from bench.plan.case import Case, Machine, PositiveInt
from bench.strategies.base import Context, Mark, Options, Session, Strategy
from bench.strategies.deepspeed_fp64 import widened
from bench.strategies.module_session import addresses, autocast, local_bytes
from bench.strategies.saving import Saving
from workloads.base import Batch, Facts, Problem

INSTALL_EXTRA = "pip install '.[deepspeed]' in the folder of this project"


class DeepSpeedOptions(Options, frozen=True, kw_only=True):
    """Settings of ``deepspeed``, under DeepSpeed's own names and defaults.

    A default is not passed on at all. Sizes count numbers, not bytes. ``allgather_bucket_size`` is
    not among them: where torch has ``all_gather_into_tensor``, DeepSpeed never looks at it.
    """

    stage: Literal[0, 1, 2, 3] = 0
    """ZeRO's stage, what is sharded over the devices: 0 nothing, 1 the optimizer's state, 2 the
    gradients too, 3 the parameters as well. Helps by saving the more memory the higher it is.
    Costs half as much communication again in 1 and 2, which all-reduce as 0 does and then gather
    what each device has updated; in 3, gathering parameters before each use."""
    reduce_bucket_size: PositiveInt = 500_000_000
    """Numbers that are reduced at a time, from stage 1 on. Helps, when lowered, to start early
    where communication may overlap, and to save the buffer of this size that contiguous gradients
    keep: 2 GB in fp32 at the default, however small the model. Costs, when lowered, a latency for
    each."""
    overlap_comm: bool | None = None
    """Reduce gradients while backward goes on. Null is DeepSpeed's own choice: true in stage 3,
    else false. Helps on accelerators by hiding communication; a CPU has no streams that could
    overlap. Costs a second buffer."""
    contiguous_gradients: bool = True
    """Copy gradients into one buffer as they come. Helps by saving the allocator from fragments on
    large models. Costs a copy, and a buffer of ``reduce_bucket_size``."""
    stage3_prefetch_bucket_size: PositiveInt = 50_000_000
    """Numbers of parameters that stage 3 gathers ahead of their use. Helps, when raised, to hide
    more of the gathering. Costs memory for more of the model."""
    stage3_param_persistence_threshold: PositiveInt = 100_000
    """Stage 3 leaves parameters smaller than this whole on every device. In a small model nothing
    is larger than the default, so that nothing is gathered before use. Helps, when raised, by
    saving small messages. Costs memory."""
    stage3_max_reuse_distance: PositiveInt = 1_000_000_000
    """Stage 3 keeps a gathered parameter that is used again before this many numbers of others, or
    that its prefetching comes to meanwhile. At the default a model of up to a billion parameters
    stays whole from forward to backward. Helps, when raised, by saving gathering. Costs memory."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """Keep the optimizer's state on the host and update there, from stage 1 on. On accelerators
    only. Helps by freeing a device's memory for a larger model. Costs copies both ways in every
    step, and an update on the host's cores."""


EFFECTIVE: Mapping[str, tuple[int, ...]] = {
    "reduce_bucket_size": (1, 2, 3),
    "overlap_comm": (1, 2, 3),
    "contiguous_gradients": (1, 2, 3),
    "stage3_prefetch_bucket_size": (3,),
    "stage3_param_persistence_threshold": (3,),
    "stage3_max_reuse_distance": (3,),
    "offload_optimizer": (1, 2, 3),
}
"""Stages in which a setting does anything."""


OF_GRADIENTS = ("averaged_gradients", "all_grad_tensors", "grad_partitions_flat_buffer")
"""Where its optimizers keep gradients between backward and the step, from stage 1 on."""


def is_installed() -> bool:
    """Whether the package is there. Does not import it, and takes no folder of its name for it."""
    spec = importlib.util.find_spec("deepspeed")
    return spec is not None and spec.origin is not None


def check(facts: Facts, case: Case, machine: Machine) -> str | None:
    """Whether the package is there, and takes the case."""
    del machine
    if not is_installed():
        return f"needs the package deepspeed: {INSTALL_EXTRA}"
    if facts.has_sparse_gradients and case.options["stage"] > 0:
        return "ZeRO keeps gradients in flat buffers, which sparse ones do not fit; use stage 0"
    return _misfit(case) or _refused(case)


def _misfit(case: Case) -> str | None:
    """Why options do nothing here, or cannot be."""
    options = msgspec.convert(case.options, DeepSpeedOptions)
    for name in options.changed():
        stages = EFFECTIVE.get(name)
        if stages is not None and options.stage not in stages:
            others = f"stages {stages[0]} to {stages[-1]}" if len(stages) > 1 else "stage 3"
            return f"{name} does nothing in stage {options.stage}, but in {others}; leave it out"
    if options.offload_optimizer != "none" and case.device == "cpu":
        return "offload_optimizer does nothing on a CPU, where the state is anyway; leave it out"
    return None


def _refused(case: Case) -> str | None:
    """What this strategy does not do, whatever its options."""
    if case.precision == "bf16":
        return (
            "DeepSpeed's bf16 keeps fp32 weights beside the narrow ones, which is not what bf16"
            " means in other rows; use bf16-amp"
        )
    if case.precision == "fp16-amp":
        return "DeepSpeed scales the loss by rules of its own; use bf16-amp"
    if case.compile != "none" and case.compile_scope == "outside":
        return (
            "DeepSpeed's engine is not compiled itself, only the model within it; use"
            " compile_scope: inside or blocks"
        )
    if case.accumulation_sync == "every":
        return (
            "DeepSpeed itself decides when it reduces: once a step in stages 0 and 1, after every"
            " micro-step in 2 and 3; leave accumulation_sync at last"
        )
    return None


def flags(facts: Facts, case: Case) -> Sequence[str]:
    """What the stage, the backend and the number of devices do to its figures."""
    del facts
    stage = case.options["stage"]
    found = []
    if case.world_size == 1:
        found += ["no_sharding"] if stage else []
    elif case.backend == "gloo":
        found.append("deepspeed_over_gloo")
    if stage >= 2 and case.accumulation_steps > 1:
        found.append("deepspeed_reduces_each")
    if case.precision in AUTOCAST and stage:
        found.append("deepspeed_autocast")
    if case.options["offload_optimizer"] != "none":
        found.append("cpu_offload")
    return found


def saving(options: Mapping[str, Any], world_size: int) -> Saving:
    """By its engine alone."""
    del options, world_size
    return Saving(
        form="none",
        reason="DeepSpeed's engine saves in a form of its own, which no other strategy here reads",
    )


def engine_config(options: DeepSpeedOptions, context: Context) -> dict[str, Any]:
    """What DeepSpeed is told: what the case asks for, and nothing that waits for a device.

    Its own timer of throughput would, in every step.
    """
    zero: dict[str, Any] = {"stage": options.stage, **options.changed()}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # for its logs only: batches are given to it
        "gradient_accumulation_steps": context.accumulation_steps,
        "zero_optimization": zero,
        "gradient_clipping": 0.0,  # some versions clip unless told not to, which no other row does
        "zero_allow_untested_optimizer": True,  # it calls all of torch's but Adam untested
        "timers": {"throughput": {"enabled": False}},
    }
    if options.offload_optimizer != "none":
        zero["offload_optimizer"] = {"device": options.offload_optimizer}
        config["zero_force_ds_cpu_optimizer"] = False  # the optimizer is the same in all rows
    dtype = AUTOCAST.get(context.precision)
    if dtype is not None:
        config["torch_autocast"] = {"enabled": True, "dtype": str(dtype).removeprefix("torch.")}
    return config


def prepare(problem: Problem, context: Context) -> Session:
    """Have DeepSpeed's engine wrap the model and torch's optimizer, in the group that is there."""
    deepspeed = _import_for(context)
    parameters = list(problem.model.parameters())
    wide = parameters[0].dtype == torch.float64
    with widened(deepspeed, context.options.stage if wide else None) as widen:
        engine, *_ = deepspeed.initialize(
            model=problem.model,
            model_parameters=parameters,
            optimizer=problem.make_optimizer(parameters),
            config=engine_config(context.options, context),
            dist_init_required=False,
        )
        widen(engine)
    return DeepSpeedSession(problem=problem, context=context, engine=engine)


def _import_for(context: Context) -> Any:
    """The package, told which device this is; it would look for one by itself otherwise."""
    os.environ["DS_ACCELERATOR"] = context.device.type
    # Without this it asks ``numactl`` how many devices a CPU is, in a new process in each step.
    os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
    import deepspeed.ops  # noqa: PLC0415 - it takes hold of a device
    import deepspeed.utils  # noqa: PLC0415

    # It would compile an operator for inference on a CPU, for minutes, into the user's cache.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


@dataclass(kw_only=True)
class DeepSpeedSession:
    """Session of an engine, which divides the loss, reduces, and steps by rules of its own."""

    problem: Problem
    context: Context
    engine: Any

    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        """See ``Session``; the engine knows by itself which micro-step is the last."""
        assert self.engine.is_gradient_accumulation_boundary() == sync
        output = self.engine(*batch.inputs)
        with autocast(self.context):
            loss = self.problem.loss(output, batch)
        mark("forward")
        self.engine.backward(loss)
        if not sync:
            self.engine.step()  # counts micro-steps, and does no more before the last
        mark("backward")
        return loss.detach()

    def optimizer_step(self) -> None:
        """See ``Session``."""
        self.engine.step()

    def skipped_steps(self) -> int:
        """See ``Session``."""
        return int(self.engine.skipped_steps)

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        import deepspeed  # noqa: PLC0415 - prepare has imported it

        for name, parameter in self.problem.model.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter]):  # does nothing before stage 3
                value = parameter.detach().clone()
            yield name, value

    def full_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        from deepspeed.utils import safe_get_full_grad  # noqa: PLC0415 - as above

        for name, parameter in self.problem.model.named_parameters():
            gradient = safe_get_full_grad(parameter)
            if gradient is not None:
                yield name, gradient

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        yield from self.problem.model.named_buffers()

    def bucket_bytes(self) -> list[int] | None:
        """See ``Session``: DeepSpeed does not tell how it has filled its buckets."""
        return None

    def held_bytes(self) -> list[dict[str, int]]:
        """See ``Session``."""
        return [{name: local_bytes(tensors) for name, tensors in self._lasting().items()}]

    def _lasting(self) -> dict[str, list[Tensor]]:
        """What lives from step to step, by category, as far as this device holds it.

        What the optimizer updates counts apart where it is a copy.
        """
        model, optimizer = self.problem.model, self.engine.basic_optimizer
        own = list(_stored(model.parameters()))
        known = {part.untyped_storage().data_ptr() for part in own}
        copies = [one for one in optimizer.state if one.untyped_storage().data_ptr() not in known]
        kind = self.context.device.type
        return {
            name: [one for one in _tensors_in(held) if one.device.type == kind]
            for name, held in {
                "parameters": own,
                "buffers": list(model.buffers()),
                "optimizer_state": list(optimizer.state.values()),
                "master_parameters": copies,
            }.items()
        }

    def held_addresses(self) -> dict[int, str]:
        """See ``Session``: what lasts, and gradients, which the engine keeps in places of its own.

        Buffers that it reduces in are gone when backward has ended.
        """
        gradients = [
            *(one.grad for one in self.problem.model.parameters()),
            *(getattr(self.engine.optimizer, name, None) for name in OF_GRADIENTS),
        ]
        held = {"gradients": list(_tensors_in(gradients)), **self._lasting()}
        return {address: name for name, tensors in held.items() for address in addresses(tensors)}

    def close(self) -> None:
        """See ``Session``: the engine holds hooks and buffers."""
        self.engine.destroy()
        del self.engine


def _tensors_in(held: Any) -> Iterator[Tensor]:
    """Whatever lists and mappings they are in."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, list | tuple):
        for one in held:
            yield from _tensors_in(one)
    elif isinstance(held, dict):
        yield from _tensors_in(list(held.values()))


def _stored(parameters: Iterable[nn.Parameter]) -> Iterator[Tensor]:
    """What this device holds of parameters: in stage 3 its part, and the whole where that is."""
    for parameter in parameters:
        yield parameter.detach()
        part = getattr(parameter, "ds_tensor", None)
        if part is not None:
            yield part


STRATEGIES = (
    Strategy(
        name="deepspeed",
        summary="ZeRO of DeepSpeed itself: stage 0 to 3, what is sharded; needs its extra",
        processes="per_device",
        communicates=True,
        options=DeepSpeedOptions,
        saving=saving,
        flags=flags,
        check=check,
        prepare=prepare,
    ),
)
