"""Checks of what computes on the host: cores, threads, others' load, memory."""

from __future__ import annotations

from bench.doctor.facts import Facts, Program
from bench.doctor.finding import Check, Verdict, bad, ok, together, unknown, warning
from bench.errors import plural
from bench.measure.conditions import OTHERS_LOAD, STEAL

GIB = 2**30
THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
PINNING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables that bind OpenMP's threads to cores before a rank has chosen its own."""
MUCH = 0.5
"""Share of the cores from which others' programs leave nothing to measure."""
BUSY_AVERAGE = 0.5
"""Tasks per core over the last minute from which something else runs here."""
LEAST_BYTES = 1 * GIB
"""A rank of PyTorch takes a third of this before it holds any model."""
FEW_BYTES = 4 * GIB
"""Two ranks of ResNet-152 with their batches on a CPU take about as much."""
SWAPPED_BYTES = GIB // 4
QUICK_MALLOC = "MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=4294967296"
"""As ``docs/method.md`` gives it."""


def cores(facts: Facts) -> Verdict:
    """How many cores there are, and whether they are whole and alike."""
    one = facts.cores
    several = "" if one.logical == len(one.usable) else f" of {one.logical} logical CPUs"
    has = f"{plural(len(one.usable), 'core')} to compute on{several}"
    return together(
        [
            warning(
                "one core: ranks on a CPU take turns on it",
                "measure devices, or on a CPU only one device; give the container more cores",
            )
            if len(one.usable) == 1
            else None,
            _quota(one.quota),
            warning(
                f"{plural(len(one.foreign_siblings), 'core')} with a second thread that is not "
                "ours, so that others may compute there",
                "give the container both threads of each core",
            )
            if one.foreign_siblings
            else None,
            warning(
                f"cores of several kinds: {min(one.speeds)} to {max(one.speeds)} of the system's "
                "units of speed",
                "start bench on cores of one kind, with taskset",
            )
            if len(set(one.speeds)) > 1
            else None,
        ],
        ok(has if one.quota is None else f"{has}, a quota of {one.quota:g}"),
    )


def _quota(quota: float | None) -> Verdict | None:
    if quota is None or quota == int(quota):
        return None
    remedy = "set the container's quota (--cpus) to a whole number, or pin it with --cpuset-cpus"
    if quota < 1:
        return bad(
            f"a quota of {quota:g} cores: the kernel stops each rank again and again", remedy
        )
    return warning(
        f"a quota of {quota:g} cores: {int(quota)} are used, and the kernel stops all of them when "
        "helper threads use up the rest",
        remedy,
    )


def threads(facts: Facts) -> Verdict:
    """Variables about threads: this suite sets its own number, other programs obey these."""
    count = len(facts.cores.usable)
    asked = {name: facts.variables[name] for name in THREAD_COUNTS if facts.variables.get(name)}
    many = {name: value for name, value in asked.items() if _first_number(value) > count}
    bound = [f"{name}={facts.variables[name]}" for name in PINNING if _binds(facts, name)]
    limit = facts.variables.get("OMP_THREAD_LIMIT", "")
    return together(
        [
            warning(
                f"{_listed(many)}, more than the {plural(count, 'core')}", f"unset {_names(many)}"
            )
            if many
            else None,
            warning(
                f"{', '.join(bound)} binds threads, whatever cores a rank is given",
                "unset it: bench binds ranks to cores itself",
            )
            if bound
            else None,
            warning(f"OMP_THREAD_LIMIT={limit} is fewer than the cores", "unset OMP_THREAD_LIMIT")
            if limit.isdecimal() and int(limit) < count
            else None,
        ],
        ok(
            f"{_listed(asked)}; bench gives each rank as many threads as it has cores"
            if asked
            else "no variable sets the number of threads",
            "a script run by hand obeys them, and then has other threads than its row here"
            if asked
            else None,
        ),
    )


def _binds(facts: Facts, name: str) -> bool:
    value = facts.variables.get(name, "")
    return bool(value) and value.lower() not in {"false", "none", "disabled"}


def _first_number(value: str) -> int:
    """OMP_NUM_THREADS may be a list, one number per level of nesting."""
    first = value.split(",", maxsplit=1)[0].strip()
    return int(first) if first.isdecimal() else 0


def _listed(variables: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items())


def _names(variables: dict[str, str]) -> str:
    return " ".join(variables)


def governor(facts: Facts) -> Verdict:
    """What the clocks follow."""
    found = facts.cores.governors
    if not found:
        return unknown("the system does not tell the governor of its clocks")
    slow = [one for one in found if one != "performance"]
    if not slow:
        return ok("performance")
    return warning(
        ", ".join(slow),
        "sudo cpupower frequency-set -g performance, for as long as you measure",
    )


def load(facts: Facts) -> Verdict:
    """What other programs take of our cores now."""
    one, count = facts.load, max(facts.cores.logical, len(facts.cores.usable))
    remedy = "wait for them, or stop them, and look again"
    if one.busy is not None:
        found = f"other programs take {one.busy:.0%} of the cores{_named(one.busiest)}"
        if one.busy > MUCH:
            return bad(found, remedy)
        return warning(found, remedy) if one.busy > OTHERS_LOAD else ok(found)
    if one.average is None or one.runnable is None:
        return unknown("the system does not tell its load")
    place = f"on {plural(count, 'logical CPU')}"
    found = f"load average {one.average:.2f} {place}, {one.runnable} running now"
    # The average is of the whole machine, also in a container that has a part of it. What has just
    # ended is still in it; what runs this moment may be gone in the next.
    if one.average > BUSY_AVERAGE * count and one.runnable:
        return warning(found, remedy)
    return ok(found)


def _named(programs: tuple[Program, ...]) -> str:
    shown = ", ".join(f"{one.name} ({one.pid}) {one.cores:.0%} of a core" for one in programs)
    return f": {shown}" if shown else ""


def virtualisation(facts: Facts) -> Verdict:
    """Whether a hypervisor gives our time to others."""
    one, steal = facts.cores, facts.load.steal
    inside = f" in a container ({one.container})" if one.container else ""
    place = "virtual machine" if one.virtualised else "no hypervisor seen"
    if steal is None:
        return unknown(f"{place}{inside}; stolen time is not told")
    if steal > STEAL:
        verdict = bad if steal > 10 * STEAL else warning
        return verdict(
            f"{place}{inside}; {steal:.0%} of the cores' time went to other machines",
            "use a machine with cores of its own, or measure when its neighbours rest",
        )
    hint = "not every hypervisor tells of stolen time: launch more often, and compare two runs"
    return ok(f"{place}{inside}; no time stolen", hint if one.virtualised else None)


def memory(facts: Facts) -> Verdict:
    """Whether there is memory left, and none of it on a disk."""
    one = facts.memory
    if one.available is None or one.total is None:
        return unknown("the system does not tell its free memory")
    found = f"{one.available / GIB:.1f} of {one.total / GIB:.1f} GiB available"
    remedy = "end what holds memory, or raise the container's limit"
    swapped = one.swap_used or 0
    return together(
        [
            bad(found, remedy) if one.available < LEAST_BYTES else None,
            warning(found, remedy) if LEAST_BYTES <= one.available < FEW_BYTES else None,
            warning(
                f"{swapped / GIB:.1f} GiB are swapped out",
                "end what holds memory, then sudo swapoff -a and swapon -a",
            )
            if swapped > SWAPPED_BYTES
            else None,
        ],
        ok(found),
    )


def allocator(facts: Facts) -> Verdict | None:
    """Whether glibc gives memory back that the next step asks for again."""
    if not facts.memory.is_glibc or (facts.software and _has_accelerator(facts)):
        return None
    pages = f"; huge pages: {facts.memory.huge_pages}" if facts.memory.huge_pages else ""
    settings = [name for name in facts.variables if name.startswith("MALLOC_")]
    if settings or "malloc" in facts.variables.get("LD_PRELOAD", ""):
        return ok(f"{', '.join(settings) or 'another allocator'} set{pages}")
    return ok(
        f"glibc's malloc as it is{pages}",
        f"where rows are flagged page_faults, {QUICK_MALLOC} in the environment of bench run "
        "takes that cost out",
    )


def _has_accelerator(facts: Facts) -> bool:
    machine = facts.software.machine if facts.software else None
    return machine is not None and machine.accelerator is not None


def observed(facts: Facts) -> Verdict:
    """Debuggers, profilers, and settings that serialise."""
    if not facts.observers:
        return ok("no profiler, debugger, or setting that slows each step")
    return warning(
        ", ".join(facts.observers), "unset these variables, and run without what observes"
    )


CHECKS = (
    Check(
        name="cores",
        spoils="timing",
        why="a device on a CPU is a set of cores of its own; without that, ranks wait for cores "
        "and not for each other",
        examine=cores,
        is_quick=True,
    ),
    Check(
        name="threads",
        spoils="timing",
        why="more threads than cores take turns; a script with other threads than its baseline "
        "scales by as much as it has threads more",
        examine=threads,
        is_quick=True,
    ),
    Check(
        name="governor",
        spoils="timing",
        why="clocks that follow the load make the first steps slow and short ones slower than long "
        "ones",
        examine=governor,
        is_quick=True,
    ),
    Check(
        name="load",
        spoils="timing",
        why="the slowest rank sets the pace: one program on one of its cores slows down all",
        examine=load,
        is_quick=True,
    ),
    Check(
        name="virtualisation",
        spoils="timing",
        why="a hypervisor that gives cores to others makes steps slow at random",
        examine=virtualisation,
    ),
    Check(
        name="memory",
        spoils="timing",
        why="what does not fit is swapped to a disk, or its process is killed",
        examine=memory,
        is_quick=True,
    ),
    Check(
        name="allocator",
        spoils="timing",
        why="on a CPU, memory given back and asked for again in each step can cost half of it",
        examine=allocator,
    ),
    Check(
        name="observers",
        spoils="timing",
        why="what observes or serialises a program is timed with it",
        examine=observed,
        is_quick=True,
    ),
)
