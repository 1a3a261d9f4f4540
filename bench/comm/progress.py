"""What a long launch is at, for people: some sizes take minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from bench.run.phases import DONE, read_note

LOOK_S, PATIENCE_S = 0.5, 5.0
"""Between two looks, and between two lines."""


class Following:
    """Says what the first rank of a launch is at, while the launch lasts.

    Args:
        folder: of the launch, where ranks leave their notes.
        say: takes a line.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        told, next_s = "", time.monotonic() + PATIENCE_S
        while not self._over.wait(LOOK_S):
            note = read_note(self._folder, 0)
            if note is None or note.phase in {told, DONE}:
                continue
            if time.monotonic() >= next_s:
                told, next_s = note.phase, time.monotonic() + PATIENCE_S
                self._say(f"  at {told}")
