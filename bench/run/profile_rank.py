"""One process of a profile: the parts of a step, when each gradient is there, what overlap costs.

First steps as they are, for their parts; then steps with a mark at each gradient and each unit,
whose shares are laid over the parts; then steps beside collectives, for what both lose.
"""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path

import msgspec
import torch
from torch import Tensor, distributed, nn

from bench.measure.clock import LAST_PHASE
from bench.measure.device import open_device
from bench.plan.case import Case, Effort
from bench.plan.registry import find_strategy, find_workload
from bench.records.profile import Added, Gradient, Profile
from bench.run.group import join_group, require_carrier
from bench.run.handover import Assignment, RankOutcome
from bench.run.loop import Engine, run_block, warm_up, warmup_rule
from bench.run.phases import DONE, Notebook
from bench.run.process import Place, carry_out, enter
from bench.run.profile_marks import copying, laid_out, marked
from bench.run.profile_overlap import measure_overlap
from bench.run.profile_wrapper import own_group, parts_under_ddp, parts_under_fsdp
from bench.run.rank import Rank
from bench.strategies.module_session import local_bytes
from bench.strategies.sharding import units_of, whole_bytes
from workloads.base import Batch, Problem

FILE = "profile.json"
"""What the first process leaves in the launch's folder."""
WINDOW_S = 4.0
"""Of steps as they are, and again of steps with marks."""
LEAST_STEPS, MOST_STEPS = 8, 400
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
        self.place = place
        self._rank: Rank | None = None

    def do(self) -> None:
        """See ``Work``."""
        told, place = self._assignment, self.place
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
            require_carrier(told.backend, device.torch_device)
        device.set_precision(told.case.precision)
        profile = measure(rank)
        profile = _with_wrappers(profile, rank, told)
        if place.rank == 0:
            (Path(told.folder) / FILE).write_bytes(msgspec.json.encode(profile))
        rank.note(phase=DONE)

    def outcome(self, error: BaseException | None) -> RankOutcome:  # noqa: ARG002 - all is there
        """See ``Work``."""
        return RankOutcome(rank=self.place.rank) if self._rank is None else self._rank.outcome

    def leave(self) -> None:
        """See ``Work``."""
        if distributed.is_initialized():
            if self._rank is not None:
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


def _with_wrappers(profile: Profile, rank: Rank, told: ProfileAssignment) -> Profile:
    """With what DDP and FSDP add; never less than nothing, which noise may show."""
    gc.collect()
    rank.note(phase="wrappers")
    group = own_group(rank, told.backend, told.launch_s)
    ddp = parts_under_ddp(rank, group, profile.steps)
    workload = find_workload(rank.case.workload)
    facts = workload.facts(msgspec.convert(rank.case.workload_options, workload.options))
    fsdp = None if facts.has_sparse_gradients else parts_under_fsdp(rank, group, profile.steps)
    return msgspec.structs.replace(
        profile, ddp=_added(ddp, profile), fsdp=None if fsdp is None else _added(fsdp, profile)
    )


def _added(parts: dict[str, float], profile: Profile) -> Added:
    return Added(
        forward_s=max(parts["forward"] - profile.forward_s, 0.0),
        backward_s=max(parts["backward"] - profile.backward_s, 0.0),
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
    gradients, forward_shares = marked(engine, problem.model, units, steps)
    copy_s_per_byte = copying(problem.model, rank.device)
    rank.note(phase="contention")
    contention = measure_overlap(engine, rank, sum(parts.values()))
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
        units=laid_out(units, problem.model, bytes_of, laid, forward_shares, parts),
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
