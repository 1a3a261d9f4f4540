"""Checks of what processes need to start, to write and to find each other."""

from __future__ import annotations

import shlex

from bench.doctor.facts import Facts, Network, Place
from bench.doctor.finding import Check, Verdict, bad, ok, together, unknown, warning
from bench.errors import plural

MIB, GIB = 2**20, 2**30
DOCKERS_SHM = 64 * MIB
"""What Docker gives a container unless told otherwise."""
SHM_BYTES = GIB
"""A few batches of 64 images of 224 x 224 (38 MB each) for each worker of a DataLoader."""
OPEN_FILES, OPEN_FILES_LEAST = 1024, 256
"""Linux's own default for a process, and too few for one rank with its libraries and sockets."""
SLOW_NAME_S = 0.5
"""The launcher asks for the own name at every start."""
FREE_BYTES, FREE_BYTES_LEAST = GIB, 100 * MIB
"""Records of a run take some megabytes; profiles of ResNet-152, that pass through the folder for
temporary files, tens of them a rank."""
SHOWN = 4


def shared_memory(facts: Facts) -> Verdict:
    """Room for what processes hand to each other in memory."""
    size, free = facts.memory.shm_size, facts.memory.shm_free
    if size is None or free is None:
        return unknown("there is no /dev/shm", "mount one: docker run --shm-size=8g")
    found = f"{_size(free)} free of {_size(size)} in /dev/shm"
    if min(size, free) < SHM_BYTES:
        docker = ", Docker's default" if size == DOCKERS_SHM else ""
        return warning(
            f"{found}{docker}", "docker run --shm-size=8g (or --ipc=host), or clear /dev/shm"
        )
    return ok(found)


def limits(facts: Facts) -> Verdict:
    """Files that a process may open, memory that it may lock."""
    one = facts.limits
    files, hard = one.open_files, one.open_files_hard
    few = files is not None and files < OPEN_FILES
    verdict = bad if few and files is not None and files < OPEN_FILES_LEAST else warning
    attainable = f"ulimit -n {hard or 65536}"
    return together(
        [
            verdict(
                f"{files} open files",
                attainable if hard is None or hard >= OPEN_FILES else "docker run --ulimit nofile",
            )
            if few
            else None,
            warning(
                f"InfiniBand, and only {_size(one.locked_memory)} of memory may be locked",
                "ulimit -l unlimited, or docker run --ulimit memlock=-1",
            )
            if one.has_infiniband and one.locked_memory is not None
            else None,
        ],
        ok(f"{'any number of' if files is None else files} open files"),
    )


def names(facts: Facts) -> Verdict:
    """Whether the own name can be resolved, and soon."""
    one = facts.network
    remedy = f"add a line to /etc/hosts: 127.0.1.1 {one.hostname}"
    if one.addresses is None:
        return unknown("the own name was not looked up")
    if one.resolved_s is None:
        return warning(f"no answer about {one.hostname} in time", remedy)
    if not one.addresses:
        return warning(f"{one.hostname} has no address", remedy)
    found = f"{one.hostname} is {', '.join(one.addresses[:SHOWN])}"
    if one.resolved_s > SLOW_NAME_S:
        return warning(f"{found}, known after {one.resolved_s:.1f} s", remedy)
    return ok(found)


def interfaces(facts: Facts) -> Verdict:
    """Whether the interfaces that carry gloo and NCCL are there and up."""
    one = facts.network
    if not one.interfaces:
        return unknown("the system does not tell its network interfaces")
    return together(
        [
            None
            if one.interfaces.get(one.loopback)
            else bad(f"{one.loopback} is not up", f"sudo ip link set {one.loopback} up"),
            _gloo(facts),
            _nccl(facts),
        ],
        ok(f"up: {', '.join(name for name, is_up in one.interfaces.items() if is_up)}"),
    )


def _gloo(facts: Facts) -> Verdict | None:
    """As torch does: it splits the variable at commas and takes each name as it stands."""
    asked = facts.variables.get("GLOO_SOCKET_IFNAME")
    if not asked:
        return None
    there = facts.network.interfaces
    wrong = [name for name in asked.split(",") if not there.get(name)]
    return _unusable("GLOO_SOCKET_IFNAME", asked, facts.network) if wrong else None


def _nccl(facts: Facts) -> Verdict | None:
    asked = facts.variables.get("NCCL_SOCKET_IFNAME")
    if not asked or nccl_interfaces(asked, facts.network.interfaces):
        return None
    return _unusable("NCCL_SOCKET_IFNAME", asked, facts.network)


def nccl_interfaces(asked: str, there: dict[str, bool]) -> list[str]:
    """Those that are up and that NCCL would take: its manual, NCCL_SOCKET_IFNAME.

    A list of prefixes; behind ``=`` of whole names; behind ``^`` of what not to take.

    >>> there = {"lo": True, "eth0": True, "eth1": False}
    >>> nccl_interfaces("eth", there), nccl_interfaces("^=lo,eth1", there)
    (['eth0'], ['eth0'])
    """
    refused = asked.startswith("^")
    rest = asked.removeprefix("^")
    whole = rest.startswith("=")
    words = [word for word in rest.removeprefix("=").split(",") if word]

    def matches(name: str) -> bool:
        return any(name == word if whole else name.startswith(word) for word in words)

    return [name for name, is_up in there.items() if is_up and matches(name) != refused]


def _unusable(variable: str, asked: str, network: Network) -> Verdict:
    up = ", ".join(name for name, is_up in network.interfaces.items() if is_up)
    return bad(
        f"{variable}={asked} names an interface that is not there or not up",
        f"unset {variable}, or name one of: {up}",
    )


def places(facts: Facts) -> Verdict:
    """Whether the folders of a run can take what it writes."""
    if not facts.places:
        return unknown("no folder was looked at")
    problems = [problem for place in facts.places for problem in _problems(place)]
    room = ", ".join(f"{one.path}: {_size(one.free)} free" for one in facts.places)
    return together(problems, ok(room))


def _problems(place: Place) -> list[Verdict]:
    named, worse = f"{place.role}, {place.path},", bad if place.is_used else warning
    elsewhere = (
        "export TMPDIR= another folder"
        if "current" not in place.role
        else "bench run --out elsewhere"
    )
    if place.free is None:
        return [worse(f"{named} is not there", elsewhere)]
    if not place.is_writable:
        return [worse(f"{named} cannot be written to", elsewhere)]
    found: list[Verdict] = []
    if place.free < FREE_BYTES or place.free_files == 0:
        verdict = bad if place.free < FREE_BYTES_LEAST or place.free_files == 0 else warning
        room = "no more files" if place.free_files == 0 else f"{_size(place.free)}"
        found.append(verdict(f"{named} has room for {room}", f"make room, or {elsewhere}"))
    if "current" not in place.role and not place.is_executable:
        found.append(
            warning(f"{named} is mounted noexec: what torch.compile builds cannot run", elsewhere)
        )
    return found


def leftovers(facts: Facts) -> Verdict:
    """What runs that were killed have left behind."""
    one = facts.leftovers
    pids = " ".join(str(process.pid) for process in one.orphans)
    return together(
        [
            bad(
                f"processes of a run that is gone: {pids}",
                f"kill -9 {pids}",
            )
            if one.orphans
            else None,
            warning(
                f"{plural(len(one.folders), 'folder')} of a run that is gone: "
                f"{', '.join(one.folders[:SHOWN])}{', ...' if len(one.folders) > SHOWN else ''}",
                f"rm -r {shlex.join(one.folders)}, unless another container shares the folder",
            )
            if one.folders
            else None,
        ],
        ok("nothing left of runs that are gone"),
    )


def other_runs(facts: Facts) -> Verdict:
    """Whether another run of this program goes on."""
    runs = facts.leftovers.running
    if not runs:
        return ok("no other run of bench here")
    pids = ", ".join(str(one.pid) for one in runs)
    if len(runs) == 1:
        return warning(f"another run of bench goes on: process {pids}", "wait for its end")
    return warning(f"{len(runs)} other runs of bench go on: processes {pids}", "wait for their end")


def _size(count: int | None) -> str:
    """Bytes for people.

    >>> _size(64 * 2**20), _size(3 * 2**30)
    ('64 MiB', '3.0 GiB')
    """
    if count is None:
        return "any amount"
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


CHECKS = (
    Check(
        name="shared memory",
        spoils="launch",
        why="workers of a DataLoader hand over batches there, and NCCL messages within a host; "
        "where it is full they die of a bus error",
        examine=shared_memory,
    ),
    Check(
        name="limits",
        spoils="launch",
        why="sockets, libraries and tensors that processes share are open files",
        examine=limits,
    ),
    Check(
        name="names",
        spoils="launch",
        why="torchrun, and gloo without a chosen interface, ask for the own name's address; bench "
        "on one host goes through the loopback, but its launcher asks as well",
        examine=names,
    ),
    Check(
        name="interfaces",
        spoils="launch",
        why="ranks talk over them; one that is missing ends, or hangs, every launch",
        examine=interfaces,
    ),
    Check(
        name="disk",
        spoils="launch",
        why="results are written as they are measured, and ranks hand over theirs in files",
        examine=places,
    ),
    Check(
        name="leftovers",
        spoils="timing",
        why="processes that were left behind take cores and memory of devices, folders take room",
        examine=leftovers,
        is_quick=True,
    ),
    Check(
        name="other runs",
        spoils="timing",
        why="two runs at once measure each other",
        examine=other_runs,
        is_quick=True,
    ),
)
