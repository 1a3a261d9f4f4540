"""Have real ranks start, join a group, and train one step: does a launch work here at all?

Ranks are forked by the fork server as those of a run are, and end in any case: by themselves, at
the time limit, or with this process. Steps, in order: ``identity``, who am I and which device is
mine; ``channel``, joining and an all-reduce; ``agreement``, the same sums and the same parameters
everywhere. A finding names the first that failed.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.doctor.finding import Check, Finding, Verdict, bad, ok, unknown
from bench.doctor.rank import Report, Step, Task, all_reduce, expected_sum, report_file, take_part
from bench.errors import one_line
from bench.plan.case import Machine
from bench.run import server
from bench.run.loopback import loopback_variables
from bench.run.scratch import scratch

LIMIT_S = 20.0
"""From the start of the ranks to their end."""
GROUP_SHARE = 0.75
"""Of it, for ranks to give each other up, so that they can still say so."""
ORDER: tuple[Step, ...] = ("identity", "channel", "agreement", "done")
REMEDIES: dict[Step, str] = {
    "identity": "see the checks of torch, driver and devices",
    "channel": "see the checks of names and interfaces; GLOO_SOCKET_IFNAME=lo, or "
    "NCCL_DEBUG=INFO in a run by hand, say more",
    "agreement": "do not trust a figure of this machine: test its memory, its links "
    "(NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1 in turns) and torch's installation",
    "done": "",
}
OF_A_PEER = re.compile(r"reset by peer|closed by peer|connection closed|timed out", re.IGNORECASE)
"""In the words of a rank whose peer has gone, or does not come."""
Reduce = Callable[[Any], object]


def check_backends(machine: Machine) -> list[Finding]:
    """Every backend that ranks would use here: the fork server's start, then a second each."""
    pairs = [("cpu", "gloo")] if "gloo" in machine.backends else []
    if machine.accelerator is not None and machine.devices:
        pairs.append((machine.accelerator, machine.default_backends[machine.accelerator]))
    return [check_backend(machine, device, backend) for device, backend in pairs]


def check_backend(
    machine: Machine,
    device: str,
    backend: str,
    *,
    reduce: Reduce = all_reduce,
    limit_s: float = LIMIT_S,
) -> Finding:
    """One backend, with two ranks where there are two devices.

    The fork server is started; it stays until this process ends.

    Args:
        machine: whose devices the ranks are given.
        device: type of device.
        backend: that joins them.
        reduce: sums a tensor over all ranks, in place.
        limit_s: after which ranks that still run are ended.
    """
    check = Check(
        name=f"live: {backend} on {device}",
        spoils="launch",
        why="what fails here with two ranks and a tensor of eight numbers fails in every launch",
        examine=lambda _: None,
    )
    ranks = 2 if device == "cpu" else min(2, len(machine.devices))
    try:
        server.start_server()
        with scratch() as folder:
            task = Task(
                folder=str(folder),
                world_size=ranks,
                device=device,
                backend=backend,
                variables=_variables(machine, device, ranks),
                timeout_s=GROUP_SHARE * limit_s,
            )
            ends, took_s = _run(task, reduce, limit_s)
            reports = [_read(folder, rank, end, limit_s) for rank, end in enumerate(ends)]
    except (OSError, EOFError, RuntimeError) as error:  # the last of the store's socket
        said = one_line(f"{type(error).__name__}: {error}", limit=300)
        return check.finding(bad(f"no rank can be started: {said}", "see what is bad above"))
    return check.finding(judge(reports, device, took_s))


def _variables(machine: Machine, device: str, ranks: int) -> dict[str, str]:
    """As a launch has them."""
    names = [one.visible_as for one in machine.devices[:ranks]]
    visible = {"CUDA_VISIBLE_DEVICES": "" if device == "cpu" else ",".join(names)}
    return loopback_variables() | (visible if device in {"cpu", "cuda"} else {})


def _run(task: Task, reduce: Reduce, limit_s: float) -> tuple[list[int | None], float]:
    """Start the ranks, and wait until none is left.

    Returns:
        Exit codes, None for a rank that had to be ended, and the seconds from the start of the last
        rank to the end of all.
    """
    context = multiprocessing.get_context(server.START_METHOD)
    store = _Store(task)
    processes: list[multiprocessing.process.BaseProcess] = []
    try:
        for rank in range(task.world_size):
            process = context.Process(  # type: ignore[attr-defined]
                target=take_part, args=(task, rank, store.port, reduce)
            )
            process.start()  # the first waits until the server has imported torch
            processes.append(process)
        began_s = time.monotonic()
        for process in processes:
            process.join(max(0.0, began_s + limit_s - time.monotonic()))
        return [process.exitcode for process in processes], time.monotonic() - began_s
    finally:
        for process in processes:
            process.kill()
            process.join()


class _Store:
    """Where ranks find each other: on a port that the system picks."""

    def __init__(self, task: Task) -> None:
        # Not above: what only looks does without torch.
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

        self._store = TCPStore(
            "127.0.0.1", 0, task.world_size, is_master=True, wait_for_workers=False
        )
        self.port = int(self._store.port)


def _read(folder: Path, rank: int, end: int | None, limit_s: float) -> Report:
    """What a rank said last; that it said no more is a failure of the step it was in."""
    try:
        report = msgspec.json.decode(report_file(folder, rank).read_bytes(), type=Report)
    except FileNotFoundError:
        report = Report(rank=rank, step="identity")
    if report.step == "done" or report.failure is not None:
        return report
    silent = f"no word within {limit_s:g} s"
    failure = silent if end is None else f"ended with exit code {end}"
    return msgspec.structs.replace(report, failure=failure)


def judge(reports: Sequence[Report], device: str, took_s: float) -> Verdict:
    """What the ranks' reports say together.

    Args:
        reports: of all ranks, in their order.
        device: type of device.
        took_s: from the start of the ranks to their end.
    """
    stuck = [one for one in reports if one.failure is not None]
    if stuck:
        # A rank that waits for one that has failed, or has lost it, is not to blame.
        first = min(map(_blame, stuck))
        blamed = [one for one in stuck if _blame(one) == first]
        said = "; ".join(dict.fromkeys(str(one.failure) for one in blamed))
        ranks = " and ".join(str(one.rank) for one in blamed)
        noun = "rank" if len(blamed) == 1 else "ranks"
        return _broken(blamed[0].step, f"{noun} {ranks} of {len(reports)}: {said}")
    mistaken, wrong = _mistaken(reports), _wrong_sum(reports) or _apart(reports)
    if mistaken is not None:
        return _broken("identity", mistaken)
    if wrong is not None:
        return _broken("agreement", wrong)
    ranks = "1 rank" if len(reports) == 1 else f"{len(reports)} ranks"
    done = f"{ranks} joined over {reports[0].carried_by} and trained alike in {took_s:.1f} s"
    if len(reports) == 1:
        return unknown(f"{done}; with one {device} device nothing is sent")
    return ok(done)


def _blame(one: Report) -> tuple[int, bool]:
    """The less, the more to blame: who failed in an earlier step, and not for want of a peer."""
    return ORDER.index(one.step), OF_A_PEER.search(one.failure or "") is not None


def _broken(step: Step, problem: str) -> Verdict:
    return bad(f"{step}: {problem}", REMEDIES[step])


def _mistaken(reports: Sequence[Report]) -> str | None:
    for position, one in enumerate(reports):
        if (one.rank, one.world_size) != (position, len(reports)):
            return (
                f"rank {position} of {len(reports)} takes itself for {one.rank} of {one.world_size}"
            )
    names = [one.device for one in reports]
    shared = len(set(names)) < len(names) and not any(name.startswith("cpu") for name in names)
    return f"ranks share one device: {names[0]}" if shared else None


def _wrong_sum(reports: Sequence[Report]) -> str | None:
    wanted = expected_sum(len(reports))
    for one in reports:
        if list(one.total) != wanted:
            return f"rank {one.rank} got {list(one.total)} for the sum {wanted}"
    return None


def _apart(reports: Sequence[Report]) -> str | None:
    digests = {one.parameters for one in reports}
    return None if len(digests) == 1 else "parameters differ between ranks after one step of DDP"
