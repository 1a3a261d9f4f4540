"""A folder of results: append a record, read them back, and know what is already there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self, TypeVar

import msgspec

from bench.errors import OutputError, RecordsError, WriteError, one_line
from bench.plan.case import Pass
from bench.records.check import fault_of, fault_of_run
from bench.records.record import SCHEMA, Record, RunInfo

RECORDS = "records.jsonl"
RUN = "run.json"
COMPRESSED = ".gz"
MOST_NAMED = 10
"""Lines left out that are named one by one."""


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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / f"{name}{COMPRESSED}").exists():
                raise OutputError(f"{folder}: holds published results; choose another --out")
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

    The last line may be cut short by a crash: it is ignored. Any other line that is no record, or
    whose figures cannot be, is left out with a warning that names it, and the rest is read.

    Raises:
        RecordsError: no such folder, or no records in it.
    """
    return iterate_lines(folder, RECORDS, Record, fault_of)


class Line(Protocol):
    """What one line of a file holds."""

    @property
    def schema(self) -> int:
        """Number of the schema that it was written by."""


LineT = TypeVar("LineT", bound=Line)


def iterate_lines(
    folder: Path, name: str, kind: type[LineT], fault_of: Callable[[LineT], str | None]
) -> Iterator[LineT]:
    """Likewise for any file of one value a line.

    Args:
        folder: of results.
        name: of the file.
        kind: of each line.
        fault_of: why no figure may be made of a value; None where it is sound.

    Raises:
        RecordsError: no such folder, or no such file in it.
    """
    path = _existing(folder, name)
    decoder = msgspec.json.Decoder(kind)
    left_out = 0
    try:
        with open_lines(path) as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                found = _decode(line, decoder, fault_of)
                if not isinstance(found, str):
                    yield found
                elif line.endswith(b"\n"):  # every complete line does
                    left_out += 1
                    if left_out <= MOST_NAMED:
                        _warn(f"{path}:{number}: left out, {found}")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordsError(f"{path}: cannot be read: {reason}") from error
    if left_out > MOST_NAMED:
        _warn(f"{path}: {left_out} lines were left out; the first {MOST_NAMED} are named above")


def open_lines(path: Path) -> BufferedIOBase:
    """A file of lines, compressed or not, as its name says."""
    return gzip.open(path) if path.suffix == COMPRESSED else path.open("rb")


def lines_file(folder: Path, name: str) -> Path | None:
    """The file of that name in a folder, or its compressed form; None where there is neither."""
    return next(
        (path for path in (folder / name, folder / f"{name}{COMPRESSED}") if path.is_file()), None
    )


def _decode(
    line: bytes, decoder: msgspec.json.Decoder[LineT], fault_of: Callable[[LineT], str | None]
) -> LineT | str:
    """The value of a line, or why there is none in it."""
    try:
        value = decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"no record: {error}"
    if value.schema > SCHEMA:
        return f"schema {value.schema} is newer than {SCHEMA}"
    fault = fault_of(value)
    return value if fault is None else f"no record: {fault}"


def _warn(message: str) -> None:
    warnings.warn(one_line(message), stacklevel=3)


def read_run(folder: Path) -> RunInfo:
    """The run's own description.

    Raises:
        RecordsError: no such folder or file, or it is no run description.
    """
    path = _existing(folder, RUN)
    try:
        info = msgspec.json.decode(path.read_bytes(), type=RunInfo)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordsError(f"{path}: is no run description: {error}") from error
    if info.schema > SCHEMA:
        raise RecordsError(f"{path}: schema {info.schema} is newer than {SCHEMA}")
    fault = fault_of_run(info)
    if fault is not None:
        raise RecordsError(f"{path}: is no run description: {fault}")
    return info


def recorded(records: Iterable[Record]) -> set[tuple[str, int, Pass]]:
    """Keys that a resumed run need not measure again: all but the interrupted ones."""
    return {record.key for record in records if record.status != "interrupted"}


def _existing(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise RecordsError(f"{folder}: no such folder")
    path = lines_file(folder, name)
    if path is None:
        raise RecordsError(f"{folder}: holds no {name}; is it a results folder of bench run?")
    return path


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
