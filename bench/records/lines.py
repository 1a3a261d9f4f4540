"""Files of one value a line: as they were written, or compressed by gzip (``NAME.gz``).

Whatever else is in such a file is named in a warning and left out, and the rest is read: a line
that a crash has cut short, one of a newer schema, one of another program.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from bench.errors import RecordsError, one_line, plural
from bench.records.record import SCHEMA

COMPRESSED = ".gz"
MOST_NAMED = 10
"""Lines left out that are named one by one."""
LONGEST = 2**28
"""Bytes of a line: a record of a million steps has a tenth of them. A small file can hold a line of
any length once it is unpacked."""


class Line(Protocol):
    """What one line of a file holds."""

    @property
    def schema(self) -> int:
        """Number of the schema that it was written by."""


LineT = TypeVar("LineT", bound=Line)


class _Head(msgspec.Struct):
    """The one field that every schema has."""

    schema: int | None = None


class _LeftOut:
    """Names what is left out of a file, the first ones one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def add(self, number: int, why: str) -> None:
        self.count += 1
        if self.count <= MOST_NAMED:
            warn(f"{self.path}:{number}: left out, {why}")

    def end(self, read: int) -> None:
        if self.count > MOST_NAMED:
            named = f"the first {MOST_NAMED} are named above"
            warn(f"{self.path}: {self.count} lines were left out; {named}")
        if self.count and not read:
            warn(f"{self.path}: all of its lines were left out; is it another program's file?")


def place_of(folder: Path, name: str) -> Path | None:
    """The file of that name, or the compressed one; None where there is neither."""
    candidates = (folder / name, folder / f"{name}{COMPRESSED}")
    return next((path for path in candidates if path.is_file()), None)


def existing(folder: Path, name: str) -> Path:
    """Likewise.

    Raises:
        RecordsError: there is no such folder or file.
    """
    if not folder.is_dir():
        raise RecordsError(f"{folder}: no such folder")
    path = place_of(folder, name)
    if path is None:
        raise RecordsError(f"{folder}: holds no {name}; is it a results folder of bench run?")
    return path


def open_lines(path: Path) -> BufferedIOBase:
    """A file of lines, compressed or not, as its name says."""
    return gzip.open(path) if path.suffix == COMPRESSED else path.open("rb")


def iterate_lines(
    folder: Path, name: str, kind: type[LineT], fault_of: Callable[[LineT], str | None]
) -> Iterator[LineT]:
    """The values of a file one by one, so that no more than one need be held.

    Args:
        folder: of results.
        name: of the file, without the ending of a compressed one.
        kind: of each line.
        fault_of: why no figure may be made of a value; None where it is sound.

    Raises:
        RecordsError: no such folder, no such file in it, or one that cannot be read at all.
    """
    path = existing(folder, name)
    decoder = msgspec.json.Decoder(kind)
    left_out = _LeftOut(path)
    read = 0
    for number, line in _numbered(path):
        if not line.strip():
            continue
        is_whole = line.endswith(b"\n")  # every complete line does
        if len(line) >= LONGEST:
            left_out.add(number, f"no record: more than {LONGEST // 2**20} MiB")
            continue
        found = _decode(line, decoder, fault_of)
        if not isinstance(found, str):
            read += 1
            yield found
        elif is_whole:
            left_out.add(number, found)
        else:
            warn(f"{path}:{number}: left out, cut short: whatever wrote it was stopped there")
    left_out.end(read)


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, as far as the file can be read; of long ones, the beginning."""
    number = 0
    try:
        with open_lines(path) as file:
            while line := file.readline(LONGEST):
                number += 1
                yield number, line
                while len(line) == LONGEST and not line.endswith(b"\n"):
                    line = file.readline(LONGEST)
    except (EOFError, zlib.error) as error:
        warn(f"{path}: cut short or damaged: {plural(number, 'line')} could be read: {error}")
    except gzip.BadGzipFile as error:
        if not number:
            raise RecordsError(f"{path}: is no gzip file: {error}") from error
        warn(f"{path}: damaged: {plural(number, 'line')} could be read: {error}")
    except OSError as error:
        raise RecordsError(f"{path}: cannot be read: {error.strerror}") from error


def _decode(
    line: bytes, decoder: msgspec.json.Decoder[LineT], fault_of: Callable[[LineT], str | None]
) -> LineT | str:
    """The value of a line, or why there is none in it."""
    try:
        value = decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return newer(line) or f"no record: {error}"
    if value.schema > SCHEMA:
        return _is_newer(value.schema)
    fault = fault_of(value)
    return value if fault is None else f"no record: {fault}"


def newer(text: bytes) -> str | None:
    """That JSON was written by a newer schema, whatever else it holds; None where it was not."""
    try:
        schema = msgspec.json.decode(text, type=_Head).schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if schema is None or schema <= SCHEMA else _is_newer(schema)


def _is_newer(schema: int) -> str:
    return f"schema {schema} is newer than {SCHEMA}, the newest that this version of bench reads"


def warn(message: str) -> None:
    """As one line, from wherever a file is read."""
    warnings.warn(one_line(message), stacklevel=3)
