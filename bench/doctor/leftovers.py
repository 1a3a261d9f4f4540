"""What runs of ours have left behind: folders and processes. Nothing is touched."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.doctor.facts import Leftovers, Program
from bench.run.scratch import maker_of
from bench.run.server import PARENT

SLACK_S = 1.0
"""The kernel tells the start of a process in steps of 10 ms, from a boot time in whole seconds."""


def find_leftovers(proc: Path = Path("/proc")) -> Leftovers:
    """Folders and processes of ours whose run is gone, and runs that go on."""
    orphans, running = _processes(proc)
    return Leftovers(folders=_folders(), orphans=orphans, running=running)


def _folders() -> tuple[str, ...]:
    """Ours whose maker has ended, or whose number has gone to a process started later."""
    try:
        places = sorted(Path(tempfile.gettempdir()).glob("bench-*"))
    except OSError:
        return ()
    return tuple(str(path) for path in places if _is_abandoned(path))


def _is_abandoned(path: Path) -> bool:
    maker = maker_of(path.name)
    try:
        made = path.stat()
    except OSError:  # gone meanwhile
        return False
    return maker is not None and made.st_uid == os.getuid() and not _lives(maker, made.st_mtime)


def _lives(pid: int, since_s: float) -> bool:
    """Whether a process of that number has been there since then (seconds of the epoch)."""
    try:
        return psutil.Process(pid).create_time() <= since_s + SLACK_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _processes(proc: Path) -> tuple[tuple[Program, ...], tuple[Program, ...]]:
    """(those whose run is gone, other runs): fork servers and ranks inherit the run's number."""
    orphans: list[Program] = []
    own = {os.getpid(), *(one.pid for one in psutil.Process().parents())}
    running: dict[int, Program] = {}
    for pid, run in _marked(proc):
        if run in own:
            continue
        try:
            one = psutil.Process(pid)
            if one.status() == psutil.STATUS_ZOMBIE:
                continue
            if _lives(run, one.create_time()):
                running[run] = Program(pid=run, name=psutil.Process(run).name())
            else:
                orphans.append(Program(pid=pid, name=one.name()))
        except psutil.Error:  # gone meanwhile
            continue
    return tuple(orphans), tuple(running.values())


def _marked(proc: Path) -> Iterator[tuple[int, int]]:
    """(process, number of the run that it belongs to), of this user's processes."""
    mark = f"{PARENT}=".encode()
    for folder in proc.glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # another user's, or gone
            continue
        runs = [one.removeprefix(mark) for one in variables if one.startswith(mark)]
        if runs and runs[0].isdigit():
            yield int(folder.name), int(runs[0])
