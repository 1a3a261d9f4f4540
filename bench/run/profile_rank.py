"""One process of a profile: the parts of a step, when each gradient is there, what overlap costs.

First steps as they are, for their parts; then steps with a mark at each gradient and each unit,
whose shares are laid over the parts; then steps beside collectives, for what both lose.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, distributed, nn

from bench.measure.clock import LAST_PHASE
from bench.measure.collectives import bus_factor
from bench.measure.device import Device, open_device
from bench.plan.case import Case, Effort
from bench.plan.registry import find_strategy, find_workload
from bench.records.profile import Contention, Gradient, Profile, Unit
from bench.run.handover import Assignment, RankOutcome
from bench.run.loop import Engine, run_block, warm_up, warmup_rule
from bench.run.phases import DONE, Notebook
from bench.run.process import Place, carry_out, enter
from bench.run.rank import Rank
from bench.run.worker import join_group
from bench.strategies.base import local_bytes
from bench.strategies.sharding import units_of, whole_bytes
from workloads.base import Batch, Problem

FILE = "profile.json"
"""What the first process leaves in the launch's folder."""
WINDOW_S = 4.0
"""Of steps as they are, and again of steps with marks."""
LEAST_STEPS, MOST_STEPS = 8, 400
BESIDE_STEPS = 8.0
"""Lengths of a step for which collectives go on beside it."""
MESSAGE_BYTES = 25 * 2**20
"""Of each: DDP's bucket."""
COPIES = 7
OUTLIER = 1.4826
"""Times the median deviation, the standard deviation of normal values."""


class ProfileAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent tells the processes of a profile, as a file."""

    case: Case
    backend: str
    effort: Effort
    folder: str
    cores: tuple[tuple[int, ...], ...]
    environment: dict[str, str]
    launch_s: float


def main(assignment_file: str) -> None:
    """Entry of every process of a profile.

    Args:
        assignment_file: path of the launch's ``ProfileAssignment``.
    """
    assignment, place = enter(assignment_file, ProfileAssignment)
    carry_out(_Profiling(assignment, place), Path(assignment.folder))


class _Profiling:
    """See ``bench.run.process.Work``."""

    def __init__(self, assignment: ProfileAssignment, place: Place) -> None:
        self._assignment = assignment
        self._place = place
        self._rank: Rank | None = None

    def do(self) -> None:
        """See ``Work``."""
        told, place = self._assignment, self._place
        device = open_device(
            msgspec.structs.replace(told.case, backend=told.backend), [place.local_rank], told.cores
        )
        self._rank = rank = Rank(
            assignment=_as_assignment(told),
            rank=place.rank,
            local_rank=place.local_rank,
            processes=place.processes,
            strategy=find_strategy(told.case.strategy),
            device=device,
            outcome=RankOutcome(rank=place.rank),
            notebook=Notebook(Path(told.folder), place.rank),
        )
        device.claim()
        if place.processes > 1:
            join_group(
                told.backend,
                device.torch_device,
                launch_s=told.launch_s,
                group_device=device.group_device,
            )
        device.set_precision(told.case.precision)
        profile = measure(rank)
        if place.rank == 0:
            (Path(told.folder) / FILE).write_bytes(msgspec.json.encode(profile))
        rank.note(phase=DONE)

    def outcome(self, error: BaseException | None) -> RankOutcome:  # noqa: ARG002 - all is there
        """See ``Work``."""
        return RankOutcome(rank=self._place.rank) if self._rank is None else self._rank.outcome

    def leave(self) -> None:
        """See ``Work``."""
        if self._rank is not None and self._rank.has_group:
            self._rank.slowest(0.0)
            distributed.destroy_process_group()


def _as_assignment(told: ProfileAssignment) -> Assignment:
    return Assignment(
        job="timing",
        case=told.case,
        effort=told.effort,
        launch=0,
        folder=told.folder,
        started_s=time.monotonic(),
        cores=told.cores,
        environment=told.environment,
    )


def measure(rank: Rank) -> Profile:
    """The profile, of the slowest process where there are several; the same on all."""
    rank.note(phase="set-up")
    problem = rank.problem()
    sizes = _sizes(problem, rank)
    units = units_of(problem, "units")
    bytes_of = whole_bytes(problem.model)
    session = rank.session(problem)
    engine = Engine(
        session=session,
        batches=problem.batches(rank.rank, rank.processes),
        clock=rank.device.clock(),
        slowest=rank.slowest,
        accumulation_steps=1,
        after_block=rank.after_block,
    )
    rank.note(phase="warm-up")
    warm = warm_up(engine, warmup_rule(rank.assignment.effort, rank.case.device, rank.rhythm))
    gc.collect()
    window_s = min(WINDOW_S, rank.assignment.effort.window.max_s)
    steps = _count(window_s / max(statistics.median(warm.pilot_s), 1e-6))
    rank.note(phase="window")
    parts, variation = _parts(engine, rank, steps)
    rank.note(phase="gradients")
    gradients, forward_shares = _marked(engine, problem.model, units, steps)
    copy_s_per_byte = _copying(problem.model, rank.device)
    rank.note(phase="contention")
    contention = _contention(engine, rank, parts)
    workload = find_workload(rank.case.workload)
    facts = workload.facts(msgspec.convert(rank.case.workload_options, workload.options))
    laid = [
        Gradient(name=name, bytes=size, ready_s=share * parts["backward"])
        for name, size, share in gradients
    ]
    buffers = [one for one in problem.model.buffers() if one is not None]
    return Profile(
        case=rank.case,
        source="measured",
        unit=facts.unit,
        units_per_sample=facts.units_per_sample,
        data_s=parts["data"],
        forward_s=parts["forward"],
        backward_s=parts["backward"],
        optimizer_s=parts[LAST_PHASE],
        gradients=laid,
        units=_units(units, problem.model, bytes_of, laid, forward_shares, parts),
        buffers=len(buffers),
        buffer_bytes=local_bytes(buffers),
        input_bytes=sizes[0],
        output_bytes=sizes[1],
        copy_s_per_byte=copy_s_per_byte,
        synchronised_layers=_norms(problem.model),
        step_variation=variation,
        contention=contention,
        steps=steps,
    )


def _norms(model: nn.Module) -> int:
    return sum(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in model.modules())


def _count(wanted: float) -> int:
    return int(min(max(wanted, LEAST_STEPS), MOST_STEPS))


def _sizes(problem: Problem, rank: Rank) -> tuple[int, int]:
    """Bytes of one micro-batch, and of what the model makes of it."""
    batch: Batch = next(problem.batches(rank.rank, rank.processes))
    with torch.no_grad():
        output = problem.model(*batch.inputs)
    tensors = [output] if isinstance(output, Tensor) else list(output)
    return local_bytes([*batch.inputs, batch.targets]), local_bytes(tensors)


def _parts(engine: Engine, rank: Rank, steps: int) -> tuple[dict[str, float], float]:
    """(seconds of each phase, on the slowest process; how far steps scatter, as a share)."""
    block = run_block(engine, steps)
    found = {
        phase: rank.slowest(statistics.median(block.phase_s[phase]))
        for phase in ("data", "forward", "backward", LAST_PHASE)
    }
    middle = statistics.median(block.step_s)
    deviation = statistics.median(abs(one - middle) for one in block.step_s)
    return found, rank.slowest(OUTLIER * deviation / middle)


def _marked(
    engine: Engine, model: nn.Module, units: Sequence[nn.Module], steps: int
) -> tuple[list[tuple[str, int, float]], list[float]]:
    """Steps with a mark at each gradient and at the end of each unit's forward.

    Returns:
        (name, bytes, share of backward after which it is there) of each gradient in that order, and
        the share of forward that ends with each unit.
    """
    names = [name for name, one in model.named_parameters() if one.requires_grad]
    tensors = [one for one in model.parameters() if one.requires_grad]
    order: list[int] = []
    handles: list[Any] = []

    def note(number: int) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            order.append(number)
            engine.clock.mark(f"backward.{number}")

        return ready

    def end(number: int) -> Callable[..., None]:
        return lambda *_: engine.clock.mark(f"forward.{number}")

    for number, tensor in enumerate(tensors):
        handle = tensor.register_post_accumulate_grad_hook(note(number))  # type: ignore[no-untyped-call]
        handles.append(handle)
    for number, unit in enumerate(units):
        handles.append(unit.register_forward_hook(end(number)))
    engine.clock.reserve(steps * (len(tensors) + len(units) + 4))
    try:
        run_block(engine, 2)
        order.clear()
        block = run_block(engine, steps)
    finally:
        for handle in handles:
            handle.remove()
    last = order[-(len(order) // steps) :]  # the last step's; DDP, too, keeps one step's order
    shares = _cumulated(block.phase_s, "backward", last)
    gradients = [
        (names[one], tensors[one].nbytes, share) for one, share in zip(last, shares, strict=True)
    ]
    return gradients, _cumulated(block.phase_s, "forward", range(len(units)))


def _cumulated(phase_s: dict[str, list[float]], phase: str, numbers: Sequence[int]) -> list[float]:
    """After which share of a phase each of its marks comes; rising, at most 1."""
    whole = statistics.median(phase_s[phase])
    found: list[float] = []
    done = 0.0
    for number in numbers:
        done += statistics.median(phase_s.get(f"{phase}.{number}", [0.0]))
        found.append(min(done / whole, 1.0) if whole > 0 else 1.0)
    return found


def _units(  # noqa: PLR0917 - each known by its name
    units: Sequence[nn.Module],
    model: nn.Module,
    bytes_of: dict[Tensor, int],
    gradients: Sequence[Gradient],
    forward_shares: Sequence[float],
    parts: dict[str, float],
) -> list[Unit]:
    """What FSDP would gather together, in the order of forward; what is left is the root's."""
    names = {id(one): name for name, one in model.named_parameters()}
    ready = {one.name: one.ready_s for one in gradients}
    taken: set[int] = set()
    own: list[list[nn.Parameter]] = []
    for module in [*units, model]:
        parameters = [one for one in module.parameters() if id(one) not in taken]
        taken |= {id(one) for one in parameters}
        own.append(parameters)
    ends = [
        max((ready.get(names[id(one)], 0.0) for one in parameters), default=0.0)
        for parameters in own[:-1]
    ]
    first = min((ready.get(names[id(one)], 0.0) for some in own[:-1] for one in some), default=0.0)
    # What the root has behind all units comes before them: a head, a last norm.
    root_s = [ready.get(names[id(one)], 0.0) for one in own[-1]]
    head_s = max((one for one in root_s if one <= first), default=0.0)
    found: list[Unit] = []
    for number, parameters in enumerate(own[:-1]):
        before = forward_shares[number - 1] if number else 0.0
        # Backward comes to the units from the last to the first.
        begun = ends[number + 1] if number + 1 < len(ends) else head_s
        found.append(
            Unit(
                bytes=sum(bytes_of[one] for one in parameters),
                forward_s=max(forward_shares[number] - before, 0.0) * parts["forward"],
                backward_s=max(ends[number] - begun, 0.0),
            )
        )
    rest = Unit(
        bytes=sum(bytes_of[one] for one in own[-1]),
        forward_s=max(parts["forward"] - sum(one.forward_s for one in found), 0.0),
        backward_s=max(parts["backward"] - sum(one.backward_s for one in found), 0.0),
    )
    return [*found, rest]


def _copying(model: nn.Module, device: Device) -> float:
    """Seconds a byte of copying tensors of the model's sizes into one buffer, as DDP does."""
    sources = [one.detach() for one in model.parameters()]
    flat = torch.empty(
        sum(one.numel() for one in sources), dtype=sources[0].dtype, device=sources[0].device
    )
    views: list[tuple[Tensor, Tensor]] = []
    begin = 0
    for one in sources:
        views.append((flat[begin : begin + one.numel()], one.reshape(-1)))
        begin += one.numel()
    clock = device.clock()
    clock.reserve(2 * COPIES)
    clock.start()
    for _ in range(COPIES):
        for target, source in views:
            target.copy_(source)
        clock.mark(LAST_PHASE)
    seconds = clock.stop().step_s
    return statistics.median(seconds[1:]) / max(local_bytes(sources), 1)


def _contention(engine: Engine, rank: Rank, parts: dict[str, float]) -> Contention | None:
    """Steps beside all-reduces that never end, and all-reduces beside steps that never end.

    All-reduces are put into a row, as many as go on for some steps, and steps are carried out until
    the row is over. What a step takes meanwhile is compared with a step alone, and the row with a
    row alone.
    """
    if rank.processes == 1:
        return None
    step_s = sum(parts.values())
    messages = [torch.zeros(MESSAGE_BYTES // 4, device=rank.device.torch_device) for _ in range(2)]
    alone_s = _row_s(messages, 3, rank)
    count = max(int(rank.slowest(BESIDE_STEPS * step_s) / alone_s), 2)
    alone_s = _row_s(messages, count, rank)
    rank.slowest(0.0)
    began = time.perf_counter()
    works = _row(messages, count)
    stepped = list(_beside(engine, rank.device, works[-1]))
    for work in works:
        work.wait()
    rank.device.synchronize()
    row_s = rank.slowest(time.perf_counter() - began)
    # The last of them outlasted the row.
    beside_s = rank.slowest(statistics.median(stepped[:-1] or stepped))
    on_bus = count * MESSAGE_BYTES * (bus_factor("all_reduce", rank.processes) or 0.0)
    rate = on_bus / row_s
    return Contention(
        source="measured",
        stolen_s_per_byte=max(1 - step_s / beside_s, 0.0) / rate,
        most_bus_bytes_per_s=rate if row_s > count * alone_s else None,
    )


def _row(messages: Sequence[Tensor], count: int) -> list[Any]:
    """So many all-reduces, begun one behind the other; over gloo two at a time, as DDP's are."""
    return [
        distributed.all_reduce(messages[number % len(messages)], async_op=True)
        for number in range(count)
    ]


def _row_s(messages: Sequence[Tensor], count: int, rank: Rank) -> float:
    """Seconds of each of some all-reduces in a row, nothing beside them; of the slowest process."""
    rank.slowest(0.0)
    began = time.perf_counter()
    for work in _row(messages, count):
        work.wait()
    rank.device.synchronize()
    return rank.slowest((time.perf_counter() - began) / count)


def _beside(engine: Engine, device: Device, last: Any) -> Iterator[float]:
    """Seconds of each step that is carried out until some work is done."""
    is_done = False
    while not is_done:
        yield run_block(engine, 1).elapsed_s
        device.synchronize()
        is_done = last.is_completed()
