"""Be in a network namespace: a process of its own, or a thread for as long as it opens a socket."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

CLONE_NEWNET = 0x40000000
"""From linux/sched.h."""

Made = TypeVar("Made")


def enter(name: str) -> None:
    """Move the calling thread into a namespace; threads and processes that it starts are there too.

    Raises:
        OSError: there is none of that name, or no right to.
    """
    with Path("/run/netns", name).open("rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)


def made_in(name: str, make: Callable[[], Made]) -> Made:
    """What a function makes within a namespace: a socket stays where it was opened.

    Raises:
        OSError: what the function, or entering, has raised.
    """
    results: list[Made] = []
    errors: list[OSError] = []

    def work() -> None:
        try:
            enter(name)
            results.append(make())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
