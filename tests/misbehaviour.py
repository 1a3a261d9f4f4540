"""What a rank can do wrong, done for real: to itself, in the middle of its training."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
from torch import distributed, nn

from workloads.base import Problem

FLOOD_BYTES = 100_000_000
SLOW_S = 0.4
LATE_S = 0.2


def _raise(_: Any) -> None:
    raise ValueError("deliberate: \x1b[31mred\x1b[0m | pipe")


def _read_nothing(_: Any) -> None:
    ctypes.string_at(0)


def _read_beyond_the_end(_: Any) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        mapped[0]


def _allocate(_: Any) -> None:
    limit = psutil.Process().memory_info().vms + 64 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.ones(2**28)


def _claim_to_be_out_of_memory(_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


def _spin(_: Any) -> None:
    while True:
        pass


def _receive_what_nobody_sends(_: Any) -> None:
    distributed.recv(torch.zeros(1), src=0)


def _train_once_more(session: Any) -> None:
    inputs = torch.zeros(4, 32, dtype=torch.int64)
    session.module(inputs).sum().backward()


def _lose_the_number(session: Any) -> None:
    with torch.no_grad():
        next(session.module.parameters()).fill_(float("nan"))


def _leave_threads(_: Any) -> None:
    for daemon in (True, False):
        threading.Thread(target=time.sleep, args=(3600,), daemon=daemon).start()


def _leave_children(_: Any) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    # One whose parent has gone already, as a daemon's has.
    subprocess.run(["sh", "-c", "sleep 3600 & exit 0"], check=True, stdout=subprocess.DEVNULL)


def _flood(_: Any) -> None:
    line = b"flood " * 1000
    for _ in range(FLOOD_BYTES // len(line)):
        os.write(2, line + (b"" if _ % 2 else b"\n"))
    raise ValueError("after the flood")


def _print_rubbish(_: Any) -> None:
    os.write(2, bytes(range(256)) * 40 + b"\n")
    os.write(1, b"\xff\xfe" + b"x" * 1_000_000)
    raise ValueError("after the rubbish")


def _use_up_handles(_: Any) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def _kill_server(_: Any) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


AT_STEP: dict[str, Callable[[Any], object]] = {
    "raise": _raise,
    "exit": lambda _: os._exit(17),
    "quiet": lambda _: os._exit(0),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "segv": _read_nothing,
    "bus": _read_beyond_the_end,
    "allocate": _allocate,
    "out_of_memory": _claim_to_be_out_of_memory,
    "stall": lambda _: time.sleep(3600),
    "spin": _spin,
    "receive": _receive_what_nobody_sends,
    "more": _train_once_more,
    "nan": _lose_the_number,
    "threads": _leave_threads,
    "children": _leave_children,
    "flood": _flood,
    "rubbish": _print_rubbish,
    "handles": _use_up_handles,
    "server": _kill_server,
    "slow": lambda _: None,
    "abort": lambda _: None,
}
"""What the last rank does before its third optimizer step, and is given its session for."""


def misbehave(fault: str, session: Any) -> None:
    """Do what the last rank does in its third step."""
    AT_STEP.get(fault, lambda _: None)(session)


def misbehave_early(fault: str, problem: Problem) -> None:
    """Do what the last rank does before its model is wrapped."""
    match fault:
        case "shape":
            problem.model.get_submodule("norm").bias = nn.Parameter(torch.zeros(65))
        case "store":
            _lose_the_store()


def _lose_the_store() -> None:
    port = int(os.environ["MASTER_PORT"])
    for one in psutil.Process().net_connections(kind="tcp"):
        if one.raddr and one.raddr.port == port:
            with socket.socket(fileno=os.dup(one.fd)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
    distributed.distributed_c10d._get_default_store().get("what nobody has set")


NAMES = frozenset(name.upper() for name in (*AT_STEP, "shape", "store"))
