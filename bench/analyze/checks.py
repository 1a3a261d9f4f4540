"""Flags that need more than one record, or a look at its raw times: derived when reading.

``FLAGS`` says in words what each flag means, those seen while measuring included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.analyze.shapes import has_slow_start, has_trend, has_two_levels, in_most
from bench.analyze.stats import Estimate
from bench.records.record import Communication

SUPERLINEAR = 1.05
"""Factor over the number of devices from which a speedup asks for an explanation, if all of its
interval lies above that number."""
WIDE = 0.1
"""Half width of an interval, relative to the figure, that says little."""
SLOWED = 1.25
"""Times a timed step that a profiled one may take before its figures are not the timed step's."""
CONTRADICTS, CONTRADICTS_SHARE = 2.0, 0.05
"""Times one figure, and of the step, by which another must exceed it to contradict it."""
LATE_SHARE, LATE_STEP = 0.75, 0.1
"""Part of all waiting that one rank causes, and of the step that it lasts, which make it the one
that holds the others up: among equal ranks each causes its part."""
OVER_LINK = 1.05
"""Factor over a link's rate from which a bandwidth cannot be the link's alone."""
BUFFERED = 2**20
"""Bytes of a call that buffers on the way may take in at once, whatever the link's rate."""

UNFIT = {
    "oversubscribed": "more devices than sets of cores",
    "ranks_share_cores": "ranks share cores",
    "no_warmup": "measured without warm-up",
    "profiler_on": "measured while something observed the program",
    "not_compiled": "nothing was compiled",
    "recompiled": "something was compiled within the window",
}
"""Flags of rows that are compared with nothing, and why."""

FLAGS = {
    "oversubscribed": "more devices than sets of cores: nothing follows about scaling",
    "no_warmup": "no step before the window: start-up costs are in the figure",
    "ranks_share_cores": "processes were bound to the same core and took turns on it: nothing"
    " follows about scaling",
    "mixed_devices": "the devices are not all of one kind: the slowest sets the pace",
    "throttled": "heat, power or the container's quota held the device back, or its clock fell by"
    " more than a fifth within the window",
    "other_programs": "other programs used more than 5 % of the cores, or a device",
    "stolen": "the hypervisor gave more than 2 % of the cores' time to other machines",
    "coarse_timer": "the clock tells times apart by no less than 1 % of a step",
    "profiler_on": "something that observes or slows a program was on while it was timed; the"
    " record's observers name it",
    "ranks_differ": "the ranks ended with different parameters, or skipped different steps",
    "duplicate_data": "ranks trained on the same samples",
    "loss_not_finite": "the last loss of the window is no finite number: what was timed may be"
    " cheaper, or dearer, than training that goes well",
    "steps_skipped": "the gradient scaler skipped optimizer steps within the window, since some"
    " gradient was not finite: throughput counts steps without the optimizer's work; more warm-up"
    " steps let the scale settle",
    "scaler_syncs": "the gradient scaler makes the host wait for the device in every step, to know"
    " whether to skip it; optimizer_kernels: fused leaves that to the device",
    "emulated_network": "the hosts are one machine: they share its memory and caches, its kernel"
    " carries the network on the cores that compute, and a token bucket sets the links' speed",
    "emulated_precision": "this CPU has no instructions for the 16-bit type: torch converts to fp32"
    " and back, so that the row may well be slower than fp32",
    "superlinear": "more speedup than devices: the baseline is too slow, or caches or the allocator"
    " explain it",
    "imprecise": "the interval is wider than 10 % either way: more launches would narrow it",
    "noisy": "a launch stands far from the row's others, or all of them scatter widely: the"
    " figure is that of a typical launch, and not every launch is",
    "drifting": "figures rose or fell with time, beyond what chance explains: the machine changed"
    " while it was measured",
    "bimodal": "steps, or launches, stand around two levels: the figure between them is that of"
    " neither",
    "warmup_not_over": "the window's first steps were slower than its later ones: more warm-up"
    " steps are needed",
    "over_link_rate": "bytes seem to move faster than the link between the devices carries them:"
    " reduced within a switch, or another way was taken",
    "profile_slowed": "a step took a quarter longer, or more, while the profile ran: its"
    " communication figures are too high",
    "communication_contradicts": "its figures of communication do not go together: synchronisation"
    " costs far more than moving the bytes and waiting, or far less than the part that nothing"
    " hides, or the bytes move far faster within the step than alone; trust none of them",
    "sync_cost_unmeasured": "what synchronising costs is not known: steps without it keep whole"
    " gradients, for which the devices have no room",
    "straggler": "one rank comes late to the collectives and the others wait for it, which is not"
    " counted as communication",
    "allocator_retries": "memory was so scarce that the allocator gave back what it held to find"
    " room, which waits for the device: a smaller batch may well be faster",
    "page_faults": "more than a twentieth of the step goes into memory that the allocator gives"
    " back to the system and asks for again, which says nothing of the strategy",
    "page_faults_differ": "page faults take a twentieth of the step more of this row than of the"
    " baseline of its speedup, or less: the speedup is one of the allocator, too",
    "reference_implementation": "DataParallel's algorithm carried out on sets of cores, since"
    " torch's own class does nothing on a CPU; it copies within one memory, so that its place among"
    " the others does not carry over to devices",
    "no_sharding": "one device: there is nothing to shard",
    "fsdp_over_gloo": "gloo's reduce-scatter sends as much as an all-reduce, its all-gather is"
    " slow, and nothing overlaps: this says little about FSDP over NCCL",
    "fsdp_autocast": "autocast keeps a narrow copy of every weight from forward to backward and"
    " gathers wide ones; FSDP's own mixed_precision does neither",
    "fsdp_policy": "FSDP's own mixed precision, not autocast: norms, softmax and loss are computed"
    " in the narrow type, too",
    "cpu_offload": "shards, gradients and optimizer state are on the host, which runs the optimizer"
    " and waits for copies in every step",
    "nothing_to_shard": "the optimizer keeps no state, which is all that this would shard",
    "deepspeed_over_gloo": "gloo carries out a reduce-scatter as an all-reduce, and on a CPU"
    " DeepSpeed overlaps nothing: this says little about DeepSpeed over NCCL",
    "deepspeed_reduces_each": "stages 2 and 3 keep a part of the gradients only, and so reduce them"
    " after every micro-step, not once a step",
    "deepspeed_autocast": "under autocast DeepSpeed also communicates the weights and gradients of"
    " linear and convolutional layers in the narrow type: half the bytes of other rows",
    "overhead_only": "the search for unused parameters finds none, since this workload has none:"
    " whatever it costs is for nothing",
    "no_buffers": "broadcast_buffers makes no difference to a workload without buffers, such as"
    " those of batch norm",
    "hook_in_turn": "over gloo a hook of several messages waits for each bucket before the next one"
    " is sent, since they would be taken for each other: it overlaps with nothing",
    "staged": "gloo copies what is on a device to the host, and back, for every collective, and the"
    " host waits for that",
    "in_switch": "the switch between the devices may reduce what passes it, so that no least number"
    " of bytes on the links is known",
    "host_waits": "torch makes the host wait for the device in this strategy's steps",
    "shared_cores": "communication runs on the cores of the computation: what is hidden there is"
    " time-slicing",
    "allocations_unseen": "no figure of tensor memory: some is allocated on gloo's threads, where"
    " no profile looks",
    "allocations_drift": "no figure of tensor memory: not all that is released was seen",
    "loader_binds": "more than a tenth of the step is waiting for data: more workers, or a cheaper"
    " way to load, would make it faster",
    "workers_share_cores": "the loader's workers run on the cores of their rank, which compute:"
    " they take time from the step, whether it waits for them or not",
    "many_workers": "ranks and the workers of their loaders are more than the cores of the host:"
    " they take turns",
    "not_compiled": "torch.compile has compiled nothing of this model, which ran as it is",
    "partly_compiled": "a function needed more compiled versions than torch allows, and ran in part"
    " as it is; another compile_scope may need fewer",
    "recompiled": "something was compiled within the window: the figure is too low",
    "nothing_autotuned": "max-autotune found no operation that it has a choice for: the code is"
    " that of compile: default",
    "captured": "CUDA graphs keep their memory in a pool of their own: what is allocated in it is"
    " not known, what is reserved is",
    "no_cuda_graphs": "some graphs were not captured as CUDA graphs",
    "calls_stalled": "a tenth of the calls alone took three times their median or more: their cores"
    " were busy meanwhile, with the ranks' own threads or with other programs, which the median"
    " leaves out and a row of calls adds up, so that back to back a call seems slower than alone",
    "unequal_environments": "launches of this case ran in different environments",
}


def flags_of_steps(launches: Sequence[Sequence[float]]) -> list[str]:
    """Flags that follow from the step times of a row's launches.

    Args:
        launches: seconds of each step of the window, on the slowest process, per launch.
    """
    rules: dict[str, Callable[[Sequence[float]], int]] = {
        "warmup_not_over": has_slow_start,
        "drifting": has_trend,
        "bimodal": has_two_levels,
    }
    return [flag for flag, rule in rules.items() if in_most(launches, rule)]


def flags_of_figures(
    *,
    devices: int,
    speedup: Estimate | None,
    rate: Estimate | None,
    step_s: float | None,
    communication: Communication | None,
    sync_cost: Estimate | None,
    link_bytes_per_s: float | None,
) -> list[str]:
    """Flags that follow from a row's figures.

    Args:
        devices: of the row.
        speedup: over one device; None for that one itself.
        rate: throughput.
        step_s: a step of the timing pass, its mean, as a profiled one is.
        communication: of the row's own pass.
        sync_cost: likewise, with its interval.
        link_bytes_per_s: of the slowest link between the devices, where it is known.
    """
    flags: list[str] = []
    if speedup is not None:
        is_sure = speedup.low is not None and speedup.low > devices
        if is_sure and speedup.value > SUPERLINEAR * devices:
            flags.append("superlinear")
    if rate is not None and rate.half_width is not None and rate.half_width > WIDE * rate.value:
        flags.append("imprecise")
    if communication is None:
        return flags
    profiled_step_s = communication.profiled_step_s
    if profiled_step_s and step_s and profiled_step_s > SLOWED * step_s:
        flags.append("profile_slowed")
    if straggler(communication) is not None:
        flags.append("straggler")
    if step_s and contradicts(communication, sync_cost, step_s):
        flags.append("communication_contradicts")
    large = [
        one
        for one in communication.collectives or ()
        if one.payload_bytes is not None and one.payload_bytes >= BUFFERED * one.calls
    ]
    fastest = max((one.bus_bytes_per_s or 0.0 for one in large), default=0)
    if link_bytes_per_s is not None and fastest > OVER_LINK * link_bytes_per_s:
        flags.append("over_link_rate")
    return flags


def straggler(communication: Communication) -> int | None:
    """The rank that holds the others up; None where none stands out."""
    share, wait_s = communication.late_share, communication.wait_s
    step_s = communication.profiled_step_s
    if not share or not wait_s or not step_s:
        return None
    stands_out = share >= LATE_SHARE and wait_s >= LATE_STEP * step_s
    return communication.late_rank if stands_out else None


def contradicts(communication: Communication, sync_cost: Estimate | None, step_s: float) -> bool:
    """Whether figures of one row's communication cannot all be right, beyond their noise.

    Those of the profile and of the collectives alone have no interval: they count as far apart
    where one is ``CONTRADICTS`` times the other and a share of the step more.

    Args:
        communication: of the row.
        sync_cost: of the row, with its interval.
        step_s: of the timing pass.
    """

    def is_far_above(more: float, less: float) -> bool:
        return more > CONTRADICTS * less + CONTRADICTS_SHARE * step_s

    busy_s, exposed_s = communication.busy_s, communication.exposed_s
    found: list[bool] = []
    if sync_cost is not None and busy_s is not None and exposed_s is not None:
        low = sync_cost.low if sync_cost.low is not None else sync_cost.value
        high = sync_cost.high if sync_cost.high is not None else sync_cost.value
        found.append(is_far_above(low, busy_s + (communication.wait_s or 0.0)))
        found.append(is_far_above(exposed_s, max(high, 0.0)))
    if communication.standalone_s is not None and busy_s is not None:
        found.append(is_far_above(communication.standalone_s, busy_s))
    return any(found)
