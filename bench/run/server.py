"""The fork server: a process that has imported torch once and forks every rank.

So a fresh process costs a tenth of a second instead of the seconds of importing torch again. This
module imports nothing heavy: the caller can start the server first and import torch meanwhile.

It is also the first thing the server preloads, and ties the life of every process to the process
that started it. Linux sends a process the signal it asked for when its parent dies. The server
asks for it as this module is imported there; each worker asks again with ``follow_server``, since
the wish does not survive a fork. So a launcher that is killed takes all its processes with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType

PARENT = "BENCH_FORK_SERVER_PARENT"
"""Names the process that started the server: only its own child obeys."""
SERVER = "BENCH_FORK_SERVER"
"""Set in the server, and so in its workers: the server's process id."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From linux/prctl.h."""

START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
KILLED_S = 5.0
"""For killed processes to be gone."""
PRELOAD = ["bench.run.server", "bench.run.preload"]
NONE: Mapping[str, str] = MappingProxyType({})

_given: dict[str, str] = {}
"""Variables that the server at hand was started with; it is one for the process, as they are."""


def start_server(variables: Mapping[str, str] = NONE) -> None:
    """Start the fork server, which then imports torch while the caller goes on.

    One that runs already goes on, unless it was started with other variables. Must be called from
    the main thread: the server dies with the thread that started it.

    Args:
        variables: of the environment, for the server and all it forks, beyond this process's own.
    """
    # Ask NVML, not the driver, whether there is a GPU: the driver must not start in this process.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if START_METHOD != "forkserver":
        return
    if not serves(variables):
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    _given.clear()
    _given.update(variables)
    os.environ[PARENT] = str(os.getpid())
    multiprocessing.set_forkserver_preload(PRELOAD)
    with _environment(variables):  # it is executed anew, so that what is read at import applies
        multiprocessing.forkserver.ensure_running()


def renew_server(variables: Mapping[str, str] = NONE) -> None:
    """End the fork server, whose children must be gone, and start another.

    All children of one server share its layout of memory, which alone can make all their steps a
    few percent slower or faster than those of the next server.

    Args:
        variables: as for ``start_server``.
    """
    if START_METHOD == "forkserver":
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
        start_server(variables)


def serves(variables: Mapping[str, str]) -> bool:
    """Whether the server, once it runs, has just these variables; without one, any will do."""
    return START_METHOD != "forkserver" or _given == variables


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have the variables in this process's own environment for a moment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def spawning(variables: Mapping[str, str]) -> AbstractContextManager[None]:
    """Where there is no server, each process is executed anew, with what stands here meanwhile."""
    return _environment(NONE if START_METHOD == "forkserver" else variables)


def stop_server() -> None:
    """End the fork server, if there is one, and whatever its children have left behind."""
    if START_METHOD == "forkserver":
        kill_left_behind()
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def server_pid() -> int | None:
    """Process id of the fork server; None where there is none."""
    pid: int | None = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def has_ended(child: int | None) -> bool:
    """Whether a child process of this one has ended; its exit code can be read afterwards."""
    if child is None:
        return False
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # ended, and its exit code was read
        return True


def kill_left_behind() -> None:
    """Kill what ranks that have ended have started and left: processes end up with the server.

    To be called when no rank is running. Where processes cannot be listed, as without file
    handles, it warns, and the next call finds what is left. Linux only.
    """
    import psutil  # noqa: PLC0415 - the server, which imports this module, needs it not

    pid = server_pid()
    if pid is None:
        return
    try:
        left = psutil.Process(pid).children(recursive=True)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=KILLED_S)
    except psutil.NoSuchProcess:  # the server is gone, and all its children with it
        return
    except OSError as error:
        warnings.warn(f"what ranks left behind is still to be ended: {error}", stacklevel=2)


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
    # What a rank has started becomes a child of the server, not of init, when the rank is gone.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    os.environ[SERVER] = str(os.getpid())
