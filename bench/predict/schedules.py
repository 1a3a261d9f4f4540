"""What one rank does in a step, strategy by strategy, as tasks on streams.

All ranks do the same at the same time, so that one of them is enough. What they wait for each other
is in the length of the computation: see ``bench.predict.scaling``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.errors import BenchError
from bench.measure.collectives import bus_factor
from bench.plan.case import Case
from bench.predict import buckets
from bench.predict.network import Network, Places, cost
from bench.predict.timeline import Kind, Task
from bench.records.profile import Profile, Unit

COMPUTE, COMM = "compute", "communication"
HALF_HOOKS = frozenset({"fp16", "bf16"})
STATISTICS_BYTES = 4096
"""Of a synchronised batch norm's message: sums of 512 channels and their squares. It is latency that
counts."""


SYNCHRONISED_KERNELS = 3
"""More than a batch norm's one, each way: statistics, their concatenation and their combination go
apart from the normalisation (torch, nn/modules/_functions.py)."""


class Plan:
    """Tasks that are being put together.

    Args:
        network: that carries the collectives.
        places: of the ranks.
    """

    def __init__(self, network: Network, places: Places) -> None:
        self.network = network
        self.places = places
        self.tasks: list[Task] = []

    def compute(self, name: str, seconds: float, after: Sequence[int] = ()) -> int:
        """Computation behind all that was planned before; returns its number."""
        return self._add(name, "computation", COMPUTE, after, work_s=seconds)

    def communicate(  # noqa: PLR0913 - each known by its name
        self,
        name: str,
        op: str,
        size: float,
        after: Sequence[int],
        *,
        stream: str = COMM,
        places: Places | None = None,
        calls: int = 1,
    ) -> int:
        """A collective, or several equal ones in a row; returns its number."""
        among = places or self.places
        one = cost(self.network, op, size, among)
        return self._add(
            name,
            "communication",
            stream,
            after,
            work_s=calls * one.in_row_s,
            alone_s=one.alone_s + (calls - 1) * one.in_row_s,
            bytes=calls * size * (bus_factor(op, among.ranks) or 0.0),
        )

    def _add(
        self, name: str, kind: Kind, stream: str, after: Sequence[int], **told: Any
    ) -> int:
        self.tasks.append(Task(name=name, kind=kind, stream=stream, after=tuple(after), **told))
        return len(self.tasks) - 1


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
        plan.compute(_numbered("data", number), profile.data_s)
        plan.compute(_numbered("forward", number), profile.forward_s)
        plan.compute(_numbered("backward", number), profile.backward_s)
    plan.compute("optimizer", profile.optimizer_s)


def _ddp(plan: Plan, profile: Profile, case: Case) -> None:
    _require_known(case.options)
    done = _ddp_backwards(plan, profile, case)
    plan.compute("optimizer", profile.optimizer_s, done)


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
        raise BenchError("what PowerSGD's factors cost to compute is not modelled; use fp16 or bf16")
    if options.get("local_sgd_period") is not None:
        raise BenchError("a step of post-local SGD is not modelled: few of its steps communicate")


def _ddp_backwards(plan: Plan, profile: Profile, case: Case) -> list[int]:
    """All micro-steps; returns what the optimizer must wait for."""
    last = case.accumulation_steps - 1
    done: list[int] = []
    for number in range(case.accumulation_steps):
        is_due = number == last or case.accumulation_sync == "every"
        plan.compute(_numbered("data", number), profile.data_s)
        ready: list[int] = []
        sends_buffers = case.options.get("broadcast_buffers", True) and profile.buffers
        if sends_buffers and (number == 0 or case.accumulation_sync == "every"):
            before = [len(plan.tasks) - 1]
            sent = plan.communicate(
                _numbered("buffers", number), "broadcast", profile.buffer_bytes, before
            )
            ready = [plan.compute("buffers out", profile.kernel_s * profile.buffers, [sent])]
        _synchronise_layers(plan, profile, case, "forward")
        plan.compute(_numbered("forward", number), profile.forward_s, ready)
        if is_due:
            done = _ddp_backward(plan, profile, case.options, number)
        else:
            plan.compute(_numbered("backward", number), profile.backward_s)
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
    halves = options.get("comm_hook") in HALF_HOOKS
    at_s, sent = 0.0, []
    # A bucket is sent once it, and all before it, are full.
    for index, bucket in enumerate(places):
        until_s = max(profile.gradients[one].ready_s for one in bucket)
        size = sum(sizes[one] for one in bucket)
        copied_s = sum(_copy_s(profile, sizes[one]) for one in bucket)
        squeezed_s = _copy_s(profile, size) if halves else 0.0
        name = f"bucket {index + 1}"
        full = plan.compute(
            _numbered(f"backward to {name}", number),
            max(until_s - at_s, 0.0) + copied_s + squeezed_s,
        )
        at_s = max(at_s, until_s)
        payload = size / 2 if halves else size
        sent.append(plan.communicate(_numbered(name, number), "all_reduce", payload, [full]))
    plan.compute(_numbered("backward, the rest", number), max(profile.backward_s - at_s, 0.0))
    is_view = bool(options.get("gradient_as_bucket_view"))
    for index, bucket in enumerate(places):
        back_s = 0.0 if is_view else sum(_copy_s(profile, sizes[one]) for one in bucket)
        if halves:
            back_s += _copy_s(profile, sum(sizes[one] for one in bucket))
        plan.compute(_numbered(f"bucket {index + 1} out", number), back_s, [sent[index]])
    return [len(plan.tasks) - 1]


def _copy_s(profile: Profile, size: int) -> float:
    """Of one gradient into its bucket or out of it."""
    return max(profile.kernel_s, size * profile.copy_s_per_byte)


def _synchronise_layers(plan: Plan, profile: Profile, case: Case, phase: str) -> None:
    if case.options.get("sync_batchnorm"):
        _synchronise(plan, profile, phase)


def _synchronise(plan: Plan, profile: Profile, phase: str) -> None:
    """Batch norms over all ranks: each waits for its own small collective, on the compute stream."""
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
            plan.communicate(_numbered(name, step), op, size, [], stream=COMPUTE)

        plan.compute(_numbered("data", number), profile.data_s)
        # Each peer's own part is sent to it alone: as much goes over the first device's links.
        move("scatter", "broadcast", others * profile.input_bytes)
        move("replicate", "broadcast", profile.gradient_bytes + profile.buffer_bytes)
        plan.compute(_numbered("forward", number), profile.forward_s)
        move("gather", "broadcast", others * profile.output_bytes)
        plan.compute(_numbered("backward", number), profile.backward_s)
        move("reduce", "reduce", profile.gradient_bytes)
    plan.compute("optimizer", profile.optimizer_s)


def _fsdp(plan: Plan, profile: Profile, case: Case) -> None:
    """Units gathered before they are used, one ahead, and gradients scattered behind."""
    units = _units(profile, case.options)
    overlaps = case.backend != "gloo"
    last = case.accumulation_steps - 1
    scattered: list[int] = []
    held = case.options.get("reshard_after_forward") is False
    for number in range(case.accumulation_steps):
        plan.compute(_numbered("data", number), profile.data_s)
        _fsdp_forward(plan, units, case, number, overlaps=overlaps)
        due = number == last or case.accumulation_sync == "every"
        scattered = _fsdp_backward(
            plan, units, case, number, overlaps=overlaps, held=held, due=due
        )
    plan.compute("optimizer", profile.optimizer_s / _shards(plan, case), scattered)


def _units(profile: Profile, options: Mapping[str, Any]) -> list[Unit]:
    """In the order of forward; the root's own, which is gathered first and freed last, last."""
    whole = Unit(
        bytes=profile.gradient_bytes, forward_s=profile.forward_s, backward_s=profile.backward_s
    )
    return [whole] if options.get("wrap") == "root" or not profile.units else profile.units


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
    plan: Plan, unit: Unit, case: Case, name: str, after: Sequence[int], stream: str
) -> int:
    size = unit.bytes / 2 if case.options.get("mixed_precision") else unit.bytes
    shared, _ = _fsdp_groups(plan, case)
    return plan.communicate(name, "all_gather", size, after, stream=stream, places=shared)


def _fsdp_forward(
    plan: Plan, units: Sequence[Unit], case: Case, number: int, *, overlaps: bool
) -> None:
    stream = COMM if overlaps else COMPUTE
    start = [len(plan.tasks) - 1]
    gathered = {len(units) - 1: _gather(plan, units[-1], case, "gather root", start, stream)}
    done: list[int] = []
    for index, unit in enumerate(units):
        if index not in gathered:
            # One ahead: a unit is gathered while the one before it is computed.
            after = [done[-2]] if len(done) > 1 else start
            name = _numbered(f"gather {index + 1}", number)
            gathered[index] = _gather(plan, unit, case, name, after, stream)
        name = _numbered(f"forward {index + 1}", number)
        done.append(plan.compute(name, unit.forward_s, [gathered[index]]))


def _fsdp_backward(  # noqa: PLR0913 - each known by its name
    plan: Plan,
    units: Sequence[Unit],
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
            name = _numbered(f"gather {index + 1} again", number)
            ready[index] = [_gather(plan, units[index], case, name, after, stream)]

    for place, index in enumerate(order):
        if index not in ready:
            gather(place)
        done[index] = plan.compute(
            _numbered(f"backward {index + 1}", number), units[index].backward_s, ready[index]
        )
        if overlaps and place + 1 < len(order):
            gather(place + 1)  # before the gradients of this one are sent
        if due:
            scattered.append(_scatter(plan, units[index], case, index, done[index], stream))
    return scattered[-1:]


def _scatter(plan: Plan, unit: Unit, case: Case, index: int, after: int, stream: str) -> int:
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


def _numbered(name: str, micro_step: int) -> str:
    return name if micro_step == 0 else f"{name} (micro-step {micro_step + 1})"


SCHEDULES = {"single": _single, "ddp": _ddp, "zero": _zero, "dp": _dp, "fsdp": _fsdp}
