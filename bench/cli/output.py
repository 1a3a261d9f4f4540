"""What every command prints: results to stdout, all else to stderr, a line each."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.errors import OutputError, one_line
from bench.records.store import write_atomically


def print_text(text: str) -> None:
    """To stdout, with marks that its encoding has."""
    encoding = sys.stdout.encoding or "ascii"
    plain = text.replace("±", "+/-").replace("–", "-")
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = plain.encode(encoding, errors="replace").decode(encoding)
    sys.stdout.write(text + "\n")


def print_while_read(text: str) -> None:
    """To stdout, if anybody still reads there: what a run has found is on the disk."""
    try:
        print_text(text)
        sys.stdout.flush()
    except OSError as error:
        say(f"bench: the tables could not be printed: {error}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or closing fails again


def print_json(value: object) -> None:
    """To stdout, indented."""
    print_text(_json(value))


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def deliver(result: object, out: Path | None) -> None:
    """A result to stdout, or to a file that replaces any of its name; text as it is, else JSON.

    Raises:
        OutputError: the file cannot be written.
    """
    if out is None:
        if isinstance(result, str):
            print_text(result.rstrip("\n"))
        else:
            print_json(result)
        return
    content = result.encode() if isinstance(result, str) else _json(result).encode() + b"\n"
    try:
        write_atomically(out, content)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {error.strerror}") from error
    say(f"written to {out}")


def say(text: str) -> None:
    """To stderr, on one line; a terminal that is gone is no reason to stop."""
    with contextlib.suppress(OSError):
        sys.stderr.write(one_line(text, limit=1000) + "\n")


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the place in our code."""
    say(f"bench: warning: {message}")


def reported(write: Callable[[Path], Path], folder: Path) -> tuple[str, bool]:
    """Write a report: what is to be said of it, and whether it is there. No row is lost to that."""
    try:
        return f"report in {write(folder)}", True
    except OutputError as error:
        return f"no report: {error}; bench report {folder} makes it once it can", False
