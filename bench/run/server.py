"""The fork server: a process that has imported torch once and forks every rank.

So a fresh process costs a tenth of a second instead of the seconds of importing torch again. This
module imports nothing heavy: the caller can start the server first and import torch meanwhile.

It is also the first thing the server preloads, and ties the life of every process to the process
that started it. Linux sends a process the signal it asked for when its parent dies. The server
asks for it as this module is imported there; each worker asks again with ``follow_server``, since
the wish does not survive a fork. So a launcher that is killed takes all its processes with it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys

PARENT = "BENCH_FORK_SERVER_PARENT"
"""Names the process that started the server: only its own child obeys."""
SERVER = "BENCH_FORK_SERVER"
"""Set in the server, and so in its workers: the server's process id."""
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
PRELOAD = ["bench.run.server", "bench.run.preload"]


def start_server() -> None:
    """Start the fork server, which then imports torch while the caller goes on.

    Must be called from the main thread: the server dies with the thread that started it.
    """
    # Ask NVML, not the driver, whether there is a GPU: the driver must not start in this process.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if START_METHOD != "forkserver":
        return
    os.environ[PARENT] = str(os.getpid())
    multiprocessing.set_forkserver_preload(PRELOAD)
    multiprocessing.forkserver.ensure_running()


def renew_server() -> None:
    """End the fork server, whose children must be gone, and start another.

    All children of one server share its layout of memory, which alone can make all their steps a
    few percent slower or faster than those of the next server.
    """
    if START_METHOD == "forkserver":
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
        start_server()


def follow_parent(parent: int) -> None:
    """Die when the parent does, and at once if it has died already. Linux only.

    Args:
        parent: its process id, known from before the call.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _is_server() -> bool:
    return os.environ.get(PARENT) == str(os.getppid())


def follow_server() -> None:
    """In a worker: die with the fork server. Nothing to do for a worker started otherwise."""
    server = os.environ.get(SERVER)
    if server is not None:
        follow_parent(int(server))


if _is_server():
    # Ctrl-C reaches every process of the terminal: what it means is the parent's to decide. The
    # server itself ignores it too, but only after it has preloaded everything.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent(int(os.environ[PARENT]))
    os.environ[SERVER] = str(os.getpid())
