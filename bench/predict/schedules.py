"""What one rank does in a step, strategy by strategy, as tasks on streams.

All ranks do the same at the same time, so that one of them is enough. What they wait for each other
is in the length of the computation: see ``bench.predict.scaling``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.errors import BenchError
from bench.plan.case import Case
from bench.predict import buckets
from bench.predict.network import Network, Places
from bench.predict.schedule_deepspeed import deepspeed
from bench.predict.schedule_fsdp import fsdp, fsdp1
from bench.predict.step_plan import COMPUTE, Plan, numbered
from bench.predict.timeline import Task
from bench.records.profile import Profile

HALF_HOOKS = frozenset({"fp16", "bf16"})
USED_BYTES = 4
"""Of each parameter in the message that says whether any rank has used it: an int32."""
STATISTICS_BYTES = 4096
"""Of a synchronised batch norm's message: sums of 512 channels and their squares. It is latency
that counts."""


SYNCHRONISED_KERNELS = 3
"""More than a batch norm's one, each way: statistics, their concatenation and their combination go
apart from the normalisation (torch, nn/modules/_functions.py)."""


def tasks_of(profile: Profile, case: Case, network: Network, places: Places) -> list[Task]:
    """A step of a case.

    Args:
        profile: of one device at the case's own batch.
        case: whose strategy there is a schedule of.
        network: that carries its collectives.
        places: of the case's devices.

    Raises:
        BenchError: there is none, or a setting of it has no model.
    """
    build = SCHEDULES.get(case.strategy)
    if build is None:
        raise BenchError(
            f"no schedule of {case.strategy!r} is known; there are {', '.join(sorted(SCHEDULES))}"
        )
    plan = Plan(network, places)
    build(plan, profile, case)
    return plan.tasks


def _single(plan: Plan, profile: Profile, case: Case) -> None:
    for number in range(case.accumulation_steps):
        plan.compute(numbered("data", number), profile.data_s)
        plan.compute(numbered("forward", number), profile.forward_s)
        plan.compute(numbered("backward", number), profile.backward_s)
    plan.compute("optimizer", profile.optimizer_s)


def _ddp(plan: Plan, profile: Profile, case: Case) -> None:
    _require_known(case.options)
    period = case.options.get("local_sgd_period")
    done = _ddp_backwards(plan, profile, case)
    updated = plan.compute("optimizer", profile.optimizer_s, done)
    if period is not None:
        # One step in so many averages all parameters, in one message: a step's share of it.
        size, name = profile.gradient_bytes, f"parameters averaged, 1/{period} of it"
        sent = plan.communicate(name, "all_reduce", size, [updated], share=1 / period)
        copies_s = 2 * _copy_s(profile, size) / period if plan.places.ranks > 1 else 0.0
        plan.compute("parameters out", copies_s, [sent])


def _zero(plan: Plan, profile: Profile, case: Case) -> None:
    """DDP; each rank updates its share, and sends it to all others."""
    done = _ddp_backwards(plan, profile, case)
    ranks = plan.places.ranks
    updated = plan.compute("optimizer", profile.optimizer_s / ranks, done)
    if case.options.get("parameters_as_bucket_view"):
        share = profile.gradient_bytes / ranks
        plan.communicate("parameters", "broadcast", share, [updated], calls=ranks)
        return
    for one in profile.gradients:
        plan.communicate(f"parameters {one.name}", "broadcast", one.bytes, [updated])


def _require_known(options: Mapping[str, Any]) -> None:
    if options.get("comm_hook") == "powersgd":
        raise BenchError(
            "what PowerSGD's factors cost to compute is not modelled; use fp16 or bf16"
        )
    if options.get("comm_hook") == "hierarchical":
        raise BenchError(
            "levels one after the other are not modelled: here every all-reduce goes through both"
            " levels at the same time, as NCCL's own does; leave comm_hook out"
        )


def _ddp_backwards(plan: Plan, profile: Profile, case: Case) -> list[int]:
    """All micro-steps; returns what the optimizer must wait for."""
    last = case.accumulation_steps - 1
    done: list[int] = []
    for number in range(case.accumulation_steps):
        is_due = number == last or case.accumulation_sync == "every"
        plan.compute(numbered("data", number), profile.data_s)
        ready: list[int] = []
        sends_buffers = case.options.get("broadcast_buffers", True) and profile.buffers
        if sends_buffers and (number == 0 or case.accumulation_sync == "every"):
            before = [len(plan.tasks) - 1]
            sent = plan.communicate(
                numbered("buffers", number), "broadcast", profile.buffer_bytes, before
            )
            ready = [plan.compute("buffers out", _buffers_s(profile), [sent])]
        _synchronise_layers(plan, profile, case, "forward")
        plan.compute(numbered("forward", number), profile.forward_s, ready)
        if is_due:
            done = _ddp_backward(plan, profile, case.options, number)
        else:
            plan.compute(numbered("backward", number), profile.backward_s)
    return done


def _ddp_backward(
    plan: Plan, profile: Profile, options: Mapping[str, Any], number: int
) -> list[int]:
    """One backward that synchronises, bucket by bucket.

    Each gradient is copied into its bucket as soon as it is there. When backward is over, each
    bucket in turn is waited for and copied back, unless gradients are views into it.
    """
    if options.get("sync_batchnorm"):
        _synchronise(plan, profile, "backward")
    sizes = [one.bytes for one in profile.gradients]
    places = buckets.layout(sizes, options)
    hook = options.get("comm_hook")
    halves = hook in HALF_HOOKS
    op = f"all_reduce:{hook}" if halves else "all_reduce"
    at_s, sent = 0.0, []
    # A bucket is sent once it, and all before it, are full.
    for index, bucket in enumerate(places):
        until_s = max(profile.gradients[one].ready_s for one in bucket)
        size = sum(sizes[one] for one in bucket)
        copied_s = sum(_copy_s(profile, sizes[one]) for one in bucket)
        squeezed_s = _copy_s(profile, size) if halves else 0.0
        name = f"bucket {index + 1}"
        full = plan.compute(
            numbered(f"backward to {name}", number),
            max(until_s - at_s, 0.0) + copied_s + squeezed_s,
        )
        at_s = max(at_s, until_s)
        payload = size / 2 if halves else size
        if options.get("local_sgd_period") is None:
            sent.append(plan.communicate(numbered(name, number), op, payload, [full]))
        else:  # the hook leaves it as it is
            sent.append(full)
    plan.compute(numbered("backward, the rest", number), max(profile.backward_s - at_s, 0.0))
    if options.get("find_unused_parameters") and not options.get("static_graph"):
        used = numbered("which parameters were used", number)
        sent_last = plan.communicate(used, "all_reduce", USED_BYTES * len(sizes), [])
        plan.compute(f"{used}, known", 0.0, [sent_last])
    is_view = bool(options.get("gradient_as_bucket_view"))
    for index, bucket in enumerate(places):
        back_s = 0.0 if is_view else sum(_copy_s(profile, sizes[one]) for one in bucket)
        if halves:
            back_s += _copy_s(profile, sum(sizes[one] for one in bucket))
        plan.compute(numbered(f"bucket {index + 1} out", number), back_s, [sent[index]])
    return [len(plan.tasks) - 1]


def _buffers_s(profile: Profile) -> float:
    """Of all buffers out of the message that they came in."""
    if profile.ddp is not None:
        return profile.ddp.forward_s
    return profile.kernel_s * profile.buffers


def _copy_s(profile: Profile, size: int) -> float:
    """Of one gradient into its bucket or out of it."""
    if profile.ddp is not None:
        return profile.ddp.backward_s / 2 * size / profile.gradient_bytes
    return max(profile.kernel_s, size * profile.copy_s_per_byte)


def _synchronise_layers(plan: Plan, profile: Profile, case: Case, phase: str) -> None:
    if case.options.get("sync_batchnorm"):
        _synchronise(plan, profile, phase)


def _synchronise(plan: Plan, profile: Profile, phase: str) -> None:
    """Batch norms over all ranks: each waits for a small collective, on the compute stream."""
    if profile.synchronised_layers:
        kernels_s = SYNCHRONISED_KERNELS * profile.kernel_s * profile.synchronised_layers
        plan.compute(f"batch norms' kernels, {phase}", kernels_s)
        op = "all_gather" if phase == "forward" else "all_reduce"
        size = STATISTICS_BYTES * (plan.places.ranks if op == "all_gather" else 1)
        plan.communicate(
            f"batch norms, {phase}", op, size, [], stream=COMPUTE, calls=profile.synchronised_layers
        )


def _dp(plan: Plan, profile: Profile, case: Case) -> None:
    """One process: everything goes out from the first device and comes back to it, in turn."""
    others = plan.places.ranks - 1
    for number in range(case.accumulation_steps):

        def move(name: str, op: str, size: float, step: int = number) -> None:
            plan.communicate(numbered(name, step), op, size, [], stream=COMPUTE)

        plan.compute(numbered("data", number), profile.data_s)
        # Each peer's own part is sent to it alone: as much goes over the first device's links.
        move("scatter", "broadcast", others * profile.input_bytes)
        move("replicate", "broadcast", profile.gradient_bytes + profile.buffer_bytes)
        plan.compute(numbered("forward", number), profile.forward_s)
        move("gather", "broadcast", others * profile.output_bytes)
        plan.compute(numbered("backward", number), profile.backward_s)
        move("reduce", "reduce", profile.gradient_bytes)
    plan.compute("optimizer", profile.optimizer_s)


SCHEDULES = {
    "single": _single,
    "ddp": _ddp,
    "zero": _zero,
    "dp": _dp,
    "fsdp": fsdp,
    "fsdp1": fsdp1,
    "deepspeed": deepspeed,
}
