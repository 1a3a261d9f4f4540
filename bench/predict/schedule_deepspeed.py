"""A step under DeepSpeed's engine, stages 0 to 2, as it goes at its defaults: nothing overlaps.

The engine waits for the whole backward, then reduces what it has gathered in buckets. In stages 1
and 2 it all-reduces as in stage 0, each device updates its share, and all gather the parameters.
Gradients are summed up over micro-steps, but in stage 2, which reduces after each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bench.errors import BenchError
from bench.plan.case import Case
from bench.predict.step_plan import Plan, numbered
from bench.records.profile import Profile

WORD = 4
"""Bytes of a number that is reduced."""
OF_STAGE_0 = 500_000_000
"""Numbers that the engine reduces at a time where no setting says so: its own constant."""


def deepspeed(plan: Plan, profile: Profile, case: Case) -> None:
    """All micro-steps, one after the other.

    Raises:
        BenchError: a setting that has no model.
    """
    options = case.options
    _require_known(options)
    stage = int(options.get("stage", 0))
    numbers = OF_STAGE_0 if stage == 0 else int(options.get("reduce_bucket_size", OF_STAGE_0))
    calls = max(math.ceil(profile.gradient_bytes / WORD / numbers), 1)
    last = case.accumulation_steps - 1
    done: list[int] = []
    for number in range(case.accumulation_steps):
        plan.compute(numbered("data", number), profile.data_s)
        plan.compute(numbered("forward", number), profile.forward_s)
        ready = plan.compute(numbered("backward", number), profile.backward_s)
        if number == last or stage == 2:
            copied = plan.compute(numbered("copies in", number), _copies_s(plan, profile), [ready])
            name, size = numbered("gradients", number), profile.gradient_bytes / calls
            done = [plan.communicate(name, "all_reduce", size, [copied], calls=calls)]
            done = [plan.compute(numbered("copies out", number), _copies_s(plan, profile), done)]
    shares = plan.places.ranks if stage else 1
    updated = plan.compute("optimizer", profile.optimizer_s / shares, done)
    if stage:
        sent = plan.communicate("parameters", "all_gather", profile.gradient_bytes, [updated])
        plan.compute("parameters, there", 0.0, [sent])


def _copies_s(plan: Plan, profile: Profile) -> float:
    """Of all gradients into a buffer, or out of it; one device has nothing to send."""
    if plan.places.ranks == 1:
        return 0.0
    each = max(profile.kernel_s * len(profile.gradients), 0.0)
    return max(each, profile.gradient_bytes * profile.copy_s_per_byte)


def _require_known(options: Mapping[str, Any]) -> None:
    if options.get("stage") == 3:
        raise BenchError(
            "DeepSpeed's stage 3 decides while it runs what it gathers, keeps and fetches ahead: "
            "that is not modelled; fsdp shards the same things"
        )
    if options.get("overlap_comm"):
        raise BenchError("DeepSpeed's overlap_comm is not modelled; leave it out")
    if options.get("offload_optimizer", "none") != "none":
        raise BenchError("what DeepSpeed's offload copies to the host is not modelled")
