"""A profile of a workload on a device that is not here, from what a step takes there.

The workload's own step runs on tensors without data, and multiplications are counted in place of
seconds: which share of them is behind each gradient, and in each unit. The length of the step is
the user's word; its parts are as in ``bench.predict.published_profile``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from bench.errors import BenchError, in_words
from bench.measure.precision import PARAMETERS
from bench.plan.case import Case
from bench.plan.registry import find_workload
from bench.predict.catalogue import Catalogue, Device
from bench.predict.memory_fake import conversions
from bench.predict.published_profile import FORWARD_SHARE, OPTIMIZER_WORDS, WORD
from bench.records.profile import Contention, Gradient, Profile, Unit
from workloads.base import Batch, Build, Problem

WORDS = {"sgd": OPTIMIZER_WORDS["sgd"], "adamw": OPTIMIZER_WORDS["adam"]}
COUNTED_BATCH = 2
"""Samples of the step that is counted: shares do not depend on it, and a batch norm needs two."""


class Counted(NamedTuple):
    """Shares of a step's multiplications; of each unit in the order of forward."""

    gradients: list[tuple[str, int, float]]
    """(name, bytes, share of backward behind it) in the order in which they become ready."""
    units: list[tuple[int, float]]
    """(bytes, share of forward); the root's rest last."""
    buffers: int
    buffer_bytes: int
    input_bytes: int
    output_bytes: int
    norms: int


def profile_of_workload(
    case: Case, *, throughput: float, device: Device, known: Catalogue
) -> Profile:
    """The profile of one device, from its samples a second.

    Args:
        case: strategy ``single`` on one device, at the batch of that figure.
        throughput: in samples a second.
        device: whose memory the optimizer and copies go through.
        known: for what is the same on all devices.

    Raises:
        BenchError: the workload does not run on tensors without data, or has nothing to train.
    """
    if not throughput > 0:
        raise BenchError(f"a throughput must be above 0, not {throughput:g}")
    try:
        found = count(case)
    except Exception as error:
        raise BenchError(
            f"{case.workload} does not run on tensors without data, so that nothing is known of "
            f"its gradients; give a profile of one device: {in_words(error)}"
        ) from error
    step_s = case.per_device_batch / throughput
    words = sum(size for _, size, _ in found.gradients) / WORD
    second_bytes = 1 / device.memory_bytes_per_s
    optimizer_s = min(WORDS[case.optimizer] * WORD * words * second_bytes, step_s / 2)
    forward_s = FORWARD_SHARE * (step_s - optimizer_s)
    backward_s = step_s - optimizer_s - forward_s
    facts_of = find_workload(case.workload)
    facts = facts_of.facts(msgspec.convert(case.workload_options, facts_of.options))
    return Profile(
        case=case,
        source="published",
        unit=facts.unit,
        units_per_sample=facts.units_per_sample,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        gradients=[
            Gradient(name=name, bytes=size, ready_s=min(share, 1.0) * backward_s)
            for name, size, share in found.gradients
        ],
        units=[
            Unit(bytes=size, forward_s=share * forward_s, backward_s=share * backward_s)
            for size, share in found.units
        ],
        buffers=found.buffers,
        buffer_bytes=found.buffer_bytes,
        input_bytes=found.input_bytes * case.per_device_batch,
        output_bytes=found.output_bytes * case.per_device_batch,
        copy_s_per_byte=2 * second_bytes,
        kernel_s=known.kernel.seconds,
        synchronised_layers=found.norms,
        step_variation=known.variation.deviation,
        contention=Contention(
            stolen_s_per_byte=known.contention.stolen_s_per_byte, source=known.contention.source
        ),
    )


def count(case: Case) -> Counted:
    """Carry out a forward and a backward on tensors without data, and count multiplications."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        with conversions():
            problem = _problem(case)
        batch = next(problem.batches(0, 1))
        return _counted(problem, batch)


def _problem(case: Case) -> Problem:
    workload = find_workload(case.workload)
    build = Build(
        device=torch.device("cpu"),
        dtype=PARAMETERS[case.precision],
        seed=case.seed,
        per_device_batch=COUNTED_BATCH,
        optimizer=case.optimizer,
    )
    return workload.build(msgspec.convert(case.workload_options, workload.options), build)


def _counted(problem: Problem, batch: Batch) -> Counted:
    model = problem.model
    units = problem.shard_units(model)
    ready: list[tuple[str, int, int]] = []
    ends: list[int] = []
    with FlopCounterMode(display=False) as counter:

        def there(name: str, size: int) -> Callable[[Tensor], None]:
            return lambda _: ready.append((name, size, counter.get_total_flops()))

        for name, one in model.named_parameters():
            if one.requires_grad:
                hook = there(name, one.nbytes)
                one.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        begins: list[int] = []
        for unit in units:
            unit.register_forward_pre_hook(lambda *_: begins.append(counter.get_total_flops()))
            unit.register_forward_hook(lambda *_: ends.append(counter.get_total_flops()))
        output: Any = model(*batch.inputs)
        loss = problem.loss(output, batch)
        forward = counter.get_total_flops()
        loss.backward()  # type: ignore[no-untyped-call]
        backward = counter.get_total_flops() - forward
    if not ready:
        raise BenchError("no parameter has a gradient")
    own = [end - begin for begin, end in zip(begins, ends, strict=True)]
    return Counted(
        gradients=_in_shares(ready, forward, backward),
        units=_units(model, units, [one / max(forward, 1) for one in own]),
        buffers=len(list(model.buffers())),
        buffer_bytes=sum(one.nbytes for one in model.buffers()),
        input_bytes=sum(one.nbytes for one in (*batch.inputs, batch.targets)) // COUNTED_BATCH,
        output_bytes=output.nbytes // COUNTED_BATCH if isinstance(output, Tensor) else 0,
        norms=sum(isinstance(one, _BatchNorm) for one in model.modules()),
    )


def _in_shares(
    ready: Sequence[tuple[str, int, int]], forward: int, backward: int
) -> list[tuple[str, int, float]]:
    """Where nothing is multiplied, each gradient is there after an equal share of backward."""
    if backward:
        return [(name, size, (at - forward) / backward) for name, size, at in ready]
    return [(name, size, (n + 1) / len(ready)) for n, (name, size, _) in enumerate(ready)]


def _units(
    model: nn.Module, units: Sequence[nn.Module], shares: Sequence[float]
) -> list[tuple[int, float]]:
    """A unit's parameters, but for those of units within it; what is left is the root's."""
    taken: set[int] = set()
    found: list[tuple[int, float]] = []
    for unit, share in zip([*units, model], [*shares, max(1 - sum(shares), 0.0)], strict=True):
        own = [one for one in unit.parameters() if id(one) not in taken]
        taken |= {id(one) for one in own}
        found.append((sum(one.nbytes for one in own), share))
    return found
