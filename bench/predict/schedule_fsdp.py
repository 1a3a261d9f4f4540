"""FSDP's step: units gathered before they are used, gradients scattered behind.

Over NCCL a unit is gathered while the one before it is computed, in forward and in backward; over
gloo nothing overlaps. All collectives go one after the other, since they share a communicator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from bench.plan.case import Case
from bench.predict.network import Places
from bench.predict.step_plan import COMM, COMPUTE, Plan, numbered
from bench.records.profile import Profile, Unit


def fsdp(plan: Plan, profile: Profile, case: Case) -> None:
    """Units gathered before they are used, one ahead, and gradients scattered behind."""
    units = [_with_copies(one, profile, case, plan.places) for one in _units(profile, case.options)]
    overlaps = case.backend != "gloo"
    last = case.accumulation_steps - 1
    scattered: list[int] = []
    held = case.options.get("reshard_after_forward") is False
    for number in range(case.accumulation_steps):
        plan.compute(numbered("data", number), profile.data_s)
        _fsdp_forward(plan, units, case, number, overlaps=overlaps)
        due = number == last or case.accumulation_sync == "every"
        scattered = _fsdp_backward(plan, units, case, number, overlaps=overlaps, held=held, due=due)
    plan.compute("optimizer", profile.optimizer_s / _shards(plan, case), scattered)


def fsdp1(plan: Plan, profile: Profile, case: Case) -> None:
    """The version before: what its sharding strategies do, in FSDP2's words.

    Without sharding each unit's gradients are all-reduced among all, which are groups of one.
    """
    strategy = case.options.get("sharding_strategy", "full_shard")
    options = dict(case.options) | {
        "reshard_after_forward": False if strategy == "shard_grad_op" else None
    }
    if strategy == "no_shard":
        options |= {"shard_size": 1}
    fsdp(plan, profile, msgspec.structs.replace(case, options=options))


def _units(profile: Profile, options: Mapping[str, Any]) -> list[Unit]:
    """In the order of forward; the root's own, which is gathered first and freed last, last."""
    whole = Unit(
        bytes=profile.gradient_bytes, forward_s=profile.forward_s, backward_s=profile.backward_s
    )
    return [whole] if options.get("wrap") == "root" or not profile.units else profile.units


class _Work(NamedTuple):
    """A unit, and what laying it out costs, once it is gathered and once it is to be scattered."""

    unit: Unit
    out_s: float
    in_s: float


def _with_copies(unit: Unit, profile: Profile, case: Case, places: Places) -> _Work:
    """What was gathered is copied into whole parameters, and gradients into parts for each rank."""
    if places.ranks == 1 or case.options.get("shard_size") == 1:
        return _Work(unit, 0.0, 0.0)
    half = 0.5 if case.options.get("mixed_precision") else 1.0
    copy_s = unit.bytes * half * profile.copy_s_per_byte
    if profile.fsdp is None:
        return _Work(unit, copy_s, copy_s)
    # Measured on one device, where the copies for others are not made.
    share = unit.bytes / max(profile.gradient_bytes, 1)
    out_s = max(copy_s, share * profile.fsdp.forward_s)
    return _Work(unit, out_s, max(copy_s, share * profile.fsdp.backward_s - out_s))


def _shards(plan: Plan, case: Case) -> int:
    return case.options.get("shard_size") or plan.places.ranks


def _fsdp_groups(plan: Plan, case: Case) -> tuple[Places, Places]:
    """(ranks that share a model, holders of equal shards)."""
    size = _shards(plan, case)
    places = plan.places
    if size >= places.ranks:
        return places, Places(hosts=1, per_host=1)
    if size <= places.per_host:
        return (
            Places(hosts=1, per_host=size),
            Places(hosts=places.hosts, per_host=max(places.per_host // size, 1)),
        )
    hosts = max(size // places.per_host, 1)
    return Places(hosts=hosts, per_host=places.per_host), Places(
        hosts=max(places.hosts // hosts, 1), per_host=1
    )


def _gather(
    plan: Plan, unit: Unit, case: Case, *, name: str, after: Sequence[int], stream: str
) -> int:
    size = unit.bytes / 2 if case.options.get("mixed_precision") else unit.bytes
    shared, _ = _fsdp_groups(plan, case)
    return plan.communicate(name, "all_gather", size, after, stream=stream, places=shared)


def _fsdp_forward(
    plan: Plan, units: Sequence[_Work], case: Case, number: int, *, overlaps: bool
) -> None:
    stream = COMM if overlaps else COMPUTE
    start = [len(plan.tasks) - 1]
    gathered = {
        len(units) - 1: _gather(
            plan, units[-1].unit, case, name="gather root", after=start, stream=stream
        )
    }
    done: list[int] = []
    for index, (unit, out_s, _) in enumerate(units):
        if index not in gathered:
            # One ahead: a unit is gathered while the one before it is computed.
            after = [done[-2]] if len(done) > 1 else start
            name = numbered(f"gather {index + 1}", number)
            gathered[index] = _gather(plan, unit, case, name=name, after=after, stream=stream)
        name = numbered(f"forward {index + 1}", number)
        done.append(plan.compute(name, out_s + unit.forward_s, [gathered[index]]))


def _fsdp_backward(
    plan: Plan,
    units: Sequence[_Work],
    case: Case,
    number: int,
    *,
    overlaps: bool,
    held: bool,
    due: bool,
) -> list[int]:
    """From the last unit to the first; returns the last of what the optimizer waits for."""
    stream = COMM if overlaps else COMPUTE
    start = len(plan.tasks) - 1
    root = len(units) - 1
    keeps = {root} if not case.options.get("reshard_after_forward") else set()
    order = list(reversed(range(len(units))))
    done: dict[int, int] = {}
    scattered: list[int] = []
    ready: dict[int, list[int]] = {}

    def gather(place: int) -> None:
        index = order[place]
        after = [done[order[place - 2]]] if place > 1 else [start]
        ready[index] = after
        if not held and index not in keeps:
            name = numbered(f"gather {index + 1} again", number)
            ready[index] = [
                _gather(plan, units[index].unit, case, name=name, after=after, stream=stream)
            ]

    for place, index in enumerate(order):
        if index not in ready:
            gather(place)
        unit, out_s, in_s = units[index]
        again_s = 0.0 if held or index in keeps else out_s
        work_s = again_s + unit.backward_s + (in_s if due else 0.0)
        name = numbered(f"backward {index + 1}", number)
        done[index] = plan.compute(name, work_s, ready[index])
        if overlaps and place + 1 < len(order):
            gather(place + 1)  # before the gradients of this one are sent
        if due:
            scattered.append(
                _scatter(plan, unit, case, index=index, after=done[index], stream=stream)
            )
    return scattered[-1:]


def _scatter(plan: Plan, unit: Unit, case: Case, *, index: int, after: int, stream: str) -> int:
    """Reduce a unit's gradients over those that share the model, then over their replicas."""
    options = case.options
    narrow = options.get("mixed_precision") and options.get("reduce_dtype") != "fp32"
    size = unit.bytes / 2 if narrow else unit.bytes
    shared, replicas = _fsdp_groups(plan, case)
    sent = plan.communicate(
        f"scatter {index + 1}", "reduce_scatter", size, [after], stream=stream, places=shared
    )
    if replicas.ranks == 1:
        return sent
    part = size / shared.ranks
    return plan.communicate(
        f"reduce {index + 1}", "all_reduce", part, [sent], stream=stream, places=replicas
    )
