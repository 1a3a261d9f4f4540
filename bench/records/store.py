"""A folder of results: append a record, read them back, and know what is already there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from bench.errors import OutputError, RecordsError, WriteError
from bench.plan.case import Pass
from bench.records.check import fault_of, fault_of_run
from bench.records.lines import COMPRESSED, existing, iterate_lines, newer
from bench.records.record import Record, RunInfo

RECORDS = "records.jsonl"
RUN = "run.json"


class Store:
    """Writer of one results folder, which it locks against other writers.

    Args:
        folder: created with its parents where it does not exist.
        resume: go on with the records that are there; else a folder with records is refused.
        name: of the file with one line for each.

    Raises:
        OutputError: the folder cannot be written, is in use, or holds results already.
    """

    def __init__(self, folder: Path, *, resume: bool = False, name: str = RECORDS) -> None:
        self.folder = folder
        self._records: IO[bytes] | None = None
        self._has_rows = False
        self._can_resume = name == RECORDS
        compressed = folder / f"{name}{COMPRESSED}"
        if compressed.is_file():
            to_go_on = f"; gunzip {compressed} to go on with them" if resume else ""
            raise OutputError(f"{folder}: holds results already, compressed ones{to_go_on}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._records = (folder / name).open("ab", buffering=0)
            fcntl.flock(self._records, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not resume and self._records.tell() > 0:
                or_resume = ", or --resume them" if self._can_resume else ""
                raise OutputError(
                    f"{folder}: holds results already; choose another --out{or_resume}"
                )
            _cut_partial_line(self._records, folder / name)
            self._has_rows = self._records.tell() > 0
        except BlockingIOError as error:
            self.close()
            raise OutputError(f"{folder}: another run is writing here") from error
        except OSError as error:
            self.close()
            raise OutputError(f"{folder}: cannot be written: {error.strerror}") from error
        except OutputError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the records file, and with it the lock."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def append(self, record: msgspec.Struct) -> None:
        """Write one record; it is on the disk when this returns.

        Raises:
            OutputError: it cannot be written; the records before it are whole. It is a
                ``WriteError`` where there are any.
        """
        assert self._records is not None, "the store is closed"
        line = msgspec.json.encode(record) + b"\n"
        state = os.fstat(self._records.fileno())
        if state.st_nlink == 0:
            raise WriteError(f"{self.folder}: was removed while the run went on")
        try:
            if self._records.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._records.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._records.truncate(state.st_size)
            raise self._cannot_be_written(error) from error
        self._has_rows = True

    def _cannot_be_written(self, error: OSError) -> OutputError:
        if not self._has_rows:
            return OutputError(f"{self.folder}: cannot be written: {error.strerror}")
        goes_on = ", and --resume goes on with them" if self._can_resume else ""
        reason = f"cannot be written: {error.strerror}"
        return WriteError(f"{self.folder}: {reason}; the rows before are there{goes_on}")

    def write_run(self, info: RunInfo) -> None:
        """Replace ``run.json`` in one step, so that no reader ever sees half of it.

        Raises:
            OutputError: it cannot be written.
        """
        text = msgspec.json.format(msgspec.json.encode(info), indent=1)
        try:
            write_atomically(self.folder / RUN, text)
        except OSError as error:
            raise self._cannot_be_written(error) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, in the order in which they were written.

    Raises:
        RecordsError: no such folder, or no records in it.
    """
    return list(iterate_records(folder))


def iterate_records(folder: Path) -> Iterator[Record]:
    """The records of a folder one by one, so that no more than one need be held.

    A line that is no record, or whose figures cannot be, is left out with a warning that names it,
    and the rest is read: the last one, too, which a crash may have cut short.

    Raises:
        RecordsError: no such folder, or no records in it.
    """
    return iterate_lines(folder, RECORDS, Record, fault_of)


def read_run(folder: Path) -> RunInfo:
    """The run's own description.

    Raises:
        RecordsError: no such folder or file, or it is no run description.
    """
    path = existing(folder, RUN)
    try:
        content = path.read_bytes()
        if (reason := newer(content)) is not None:
            raise RecordsError(f"{path}: {reason}")
        info = msgspec.json.decode(content, type=RunInfo)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordsError(f"{path}: is no run description: {error}") from error
    fault = fault_of_run(info)
    if fault is not None:
        raise RecordsError(f"{path}: is no run description: {fault}")
    return info


def recorded(records: Iterable[Record]) -> set[tuple[str, int, Pass]]:
    """Keys that a resumed run need not measure again: all but the interrupted ones."""
    return {record.key for record in records if record.status != "interrupted"}


def _cut_partial_line(file: IO[bytes], path: Path) -> None:
    """Remove what a crash left after the last newline, so that appending starts a clean line.

    A record that only lacks its newline is kept.
    """
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end == len(content):
        return
    try:
        msgspec.json.decode(content[end:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        file.truncate(end)
    else:
        file.write(b"\n")
