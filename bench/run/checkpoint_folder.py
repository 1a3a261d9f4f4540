"""Where checkpoints are saved while a case is measured, and what stays of them: mostly nothing."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.errors import OutputError

CHECKPOINTS = "checkpoints"
"""Folder of a run's results, unless they are to be saved elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """A folder with one for each case in it."""

    folder: Path
    kept: bool = False
    """Whether the last checkpoint of each case stays."""

    @contextlib.contextmanager
    def folder_of(self, case_id: str) -> Iterator[Path]:
        """An empty folder for one case; goes afterwards, unless it holds what is to be kept.

        Raises:
            OutputError: it cannot be made.
        """
        folder = (self.folder / case_id).absolute()
        try:
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut short
            folder.mkdir(parents=True)
        except OSError as error:
            raise OutputError(f"{folder}: cannot be made: {error.strerror}") from error
        is_whole = False
        try:
            yield folder
            is_whole = True
        finally:
            if not (self.kept and is_whole):
                shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # others may be in it, or it was never made
                self.folder.rmdir()
