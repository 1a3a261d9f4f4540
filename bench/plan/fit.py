"""What a machine has for a case: why it cannot run there, and what must be said if it can."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bench.errors import plural
from bench.plan.case import Case, Compile, CompileScope, Machine
from bench.strategies.base import Strategy
from workloads.base import Facts

MAX_RANKS_PER_CORE_SET = 8
"""More processes than this on one set of cores only fill the memory."""
EQUALLY_FAST = 0.95
"""Slowest over fastest core from which cores are alike: the best of them may boost a little higher,
whereas those of another kind are a fifth slower, or more."""
BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
FP16 = frozenset({"avx512_fp16", "amx_fp16", "asimdhp"})
IN_SWITCH = "in_switch"
"""Flag of cases whose collectives may send less over each link than any ring must."""
NATIVE = {"bf16": BF16, "bf16-amp": BF16, "fp16-amp": FP16}
"""Flags of CPUs, any of which means that they multiply in the precision's narrow type."""


def flags_of(
    case: Case, strategy: Strategy, facts: Facts, available: int, machine: Machine
) -> Iterator[str]:
    """What can be said of a case's figures before they are measured."""
    if case.device == "cpu":
        if case.world_size > available:
            yield "oversubscribed"
        if strategy.communicates and strategy.processes == "per_device" and case.world_size > 1:
            yield "shared_cores"
    if _are_mixed(case, available, machine):
        yield "mixed_devices"
    if case.nodes > 1 and machine.emulated:
        yield "emulated_network"
    if case.backend == "gloo" and case.device != "cpu":
        yield "staged"
    if case.backend == "nccl" and case.world_size > 1 and _may_reduce_in_switch(case, machine):
        yield IN_SWITCH
    if case.precision == "fp16-amp" and case.device != "cpu" and case.optimizer_kernels != "fused":
        yield "scaler_syncs"
    if case.device == "cpu" and _is_emulated(case, machine):
        yield "emulated_precision"
    yield from strategy.flags(facts, case)


def _may_reduce_in_switch(case: Case, machine: Machine) -> bool:
    """Whether the switch between the devices can reduce, and no variable keeps NCCL from it."""
    variables = {**os.environ, **case.env}
    is_off = variables.get("NCCL_NVLS_ENABLE") == "0"
    return machine.reduces_in_switch and not is_off and "NVLS" in variables.get("NCCL_ALGO", "NVLS")


def _is_emulated(case: Case, machine: Machine) -> bool:
    """Whether the CPU, as far as it is known, computes in no such type as the case's precision."""
    native = NATIVE.get(case.precision)
    return native is not None and bool(machine.cpu_flags) and native.isdisjoint(machine.cpu_flags)


def _are_mixed(case: Case, available: int, machine: Machine) -> bool:
    """Whether the devices that the case would use are not all of one kind."""
    if case.nodes > 1 and machine.unlike_hosts:
        return True
    if case.device == "cpu":
        used = min(case.world_size, available) * (case.cores_per_device or 1) // case.nodes
        speeds = machine.core_speeds[:used]
        return bool(speeds) and min(speeds) < EQUALLY_FAST * max(speeds)
    devices = (
        machine.devices[: case.world_size // case.nodes]
        if case.device == machine.accelerator
        else ()
    )
    # In whole GiB: two of a kind may differ by what the driver keeps for itself.
    return len({(one.name, round((one.memory_bytes or 0) / 2**30)) for one in devices}) > 1


def backend_of(strategy: Strategy, asked: str, device: str, machine: Machine) -> str | None:
    """What carries a strategy's collectives: what is asked for, or torch's own choice."""
    if not strategy.communicates:
        return None
    if asked != "auto":
        return asked
    known = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"} | machine.default_backends
    return known.get(device, "gloo")


def scope_of(strategy: Strategy, mode: Compile, asked: CompileScope) -> CompileScope:
    """What is compiled: equal code has one name, so that it is measured once."""
    if mode == "none" or (asked == "inside" and not strategy.wraps):
        return "outside"
    return asked


def nodes_of(asked: int | None, strategy: Strategy, world_size: int, each: int, hosts: int) -> int:
    """Hosts that a case is spread over: as asked, or the fewest that have its devices.

    One that no number of hosts can have as many devices of each is left to one, which lacks them.

    Args:
        asked: by the suite; None for the fewest.
        strategy: of the case; one that drives all devices from one process stays on its host.
        world_size: devices.
        each: devices of each host.
        hosts: of the run.

    >>> from bench.strategies.ddp import STRATEGIES
    >>> [nodes_of(None, STRATEGIES[0], devices, 4, 2) for devices in (1, 4, 8, 16)]
    [1, 1, 2, 2]
    """
    if asked is not None:
        return asked
    if strategy.processes == "one" or hosts == 1:
        return 1
    enough = (n for n in range(1, hosts + 1) if n * each >= world_size and not world_size % n)
    most = max((n for n in range(1, hosts + 1) if not world_size % n), default=1)
    return next(enough, most)


def _missing_hosts(case: Case, strategy: Strategy, machine: Machine) -> str | None:
    """Why the run's hosts are not those that the case asks for."""
    if case.nodes > machine.hosts:
        return f"needs {case.nodes} hosts, this run has {machine.hosts}"
    if case.world_size % case.nodes:
        return f"{case.world_size} devices are not as many on each of {case.nodes} hosts"
    if case.nodes > 1 and strategy.processes == "one":
        return "drives all devices from one process, which are those of one host"
    if not machine.emulated and not (case.link is None and case.latency_ms is None):
        return (
            "the links of real hosts are what they are; bench lab run sets those of emulated ones"
        )
    return None


def missing(
    case: Case, strategy: Strategy, facts: Facts, available: int, machine: Machine
) -> str | None:
    """Why this machine, or anyone's, cannot run the case, whatever the strategy says of it."""
    reason = _missing_hosts(case, strategy, machine)
    if reason is not None:
        return reason
    if case.device != "cpu" and case.world_size > available:
        return f"needs {plural(case.world_size, f'{case.device} device')}, found {available}"
    if case.device == "cpu" and case.world_size > MAX_RANKS_PER_CORE_SET * max(available, 1):
        return (
            f"needs {case.world_size} sets of {plural(case.cores_per_device or 1, 'core')}, "
            f"found {available}; "
            f"at most {MAX_RANKS_PER_CORE_SET} ranks share one"
        )
    if case.backend is not None and case.backend not in machine.backends:
        return f"torch here has no backend {case.backend}; it has {', '.join(machine.backends)}"
    if case.backend == "nccl" and case.device != "cuda":
        return f"NCCL carries cuda tensors, not {case.device} ones"
    if case.precision == "tf32" and not (
        case.device == machine.accelerator and all(one.has_tf32 for one in machine.devices)
    ):
        return "tf32 needs NVIDIA devices of compute capability 8.0 or more"
    if facts.has_sparse_gradients and case.optimizer == "adamw":
        return "AdamW cannot take sparse gradients; use sgd, or dense ones"
    if facts.has_batch_norm and _samples_of_norms(case, strategy) < 2:
        return "batch norm needs at least 2 samples a device; raise the batch or use fewer devices"
    return _uncompilable(case, facts, machine)


def _samples_of_norms(case: Case, strategy: Strategy) -> int:
    """That a batch norm sees at once: those of one device, unless all devices' are put together."""
    whole = strategy.reference(case.options) == "whole_batch"
    return case.per_device_batch * (case.world_size if whole else 1)


def _uncompilable(case: Case, facts: Facts, machine: Machine) -> str | None:
    """Why nothing can be compiled as the case asks, whatever its strategy is."""
    if case.compile == "none":
        return None
    if case.compile == "reduce-overhead" and case.device == "cpu":
        return (
            "reduce-overhead is made of CUDA graphs, which a CPU has not: the code would be that"
            " of compile: default, which can be asked for"
        )
    captures = case.compile in {"reduce-overhead", "max-autotune"} and case.device != "cpu"
    if captures and case.accumulation_steps > 1:
        return (
            f"{case.compile} captures CUDA graphs, each of which overwrites the gradients that the"
            " micro-step before has left (pytorch#169545); use compile: default"
        )
    if case.compile_scope == "blocks" and not facts.has_shard_units:
        return (
            "compile_scope: blocks has nothing to compile, since the workload names no shard units;"
            " use outside, or let shard_units give the model's blocks"
        )
    return machine.cannot_compile.get(case.device)
