"""The mistakes a user can make, as one small tree caught once, in ``bench.cli``.

BenchError             one line on stderr, exit code 2
|- SuiteError          a suite file: names the file, the field's path, or the line
|- FilterError         a filter expression
|- OutputError         a folder that cannot be written, is in use, or holds something else
|  |- WriteError        one that cannot be written any more: exit code 1, since rows are there
|- RecordsError        a results folder that cannot be read
Interruption           a signal asked the run to stop: exit code 128 + signal

Mistakes of our own are ``assert`` statements and ordinary exceptions, with their traceback.
"""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Iterable

CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]"  # colours, moves
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links, whatever a terminal obeys
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]"  # unseen, or turn text
    r"|[\ud800-\udfff\ufff9-\ufffb\ufffe\uffff]|[\U000e0000-\U000e0fff]"
)
"""Escape sequences, control characters, half characters, and characters that cannot be seen or
turn the direction of others: nothing of others' text may carry them into a terminal or a file."""


def one_line(text: str, limit: int = 500) -> str:
    r"""Text on one line, harmless to a terminal, and not longer than it helps.

    >>> one_line("a\n\x1b[31mb")
    'a b'
    """
    flat = " ".join(CONTROL.sub("", text).split())
    return flat if len(flat) <= limit else f"{flat[: limit - 3]}..."


CAUSES = {"Failed to init uv loop": "too many open files, or no memory for an event loop"}
"""What makes libraries fail that do not say it themselves."""


def in_words(error: BaseException) -> str:
    """An exception, and those that it was raised from, on one line."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    words = ", since ".join(f"{type(one).__name__}: {one}" for one in chain)
    known = next((why for sign, why in CAUSES.items() if sign in words), None)
    return one_line(words if known is None else f"{words}: {known}")


class BenchError(Exception):
    """Something the user can put right; the message says what, where, and how, on one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, limit=1000))

    exit_code = 2


class SuiteError(BenchError):
    """A suite file that does not describe a run.

    Args:
        message: what is wrong.
        source: name of the suite file.
        path: path of the field, such as ``matrix[0].strategies[1]``; empty for the whole file.
    """

    def __init__(self, message: str, *, source: str, path: str = "") -> None:
        place = f"{source}: {path}" if path else source
        super().__init__(f"{place}: {message}")


class FilterError(BenchError):
    """A filter expression that cannot be understood."""


class OutputError(BenchError):
    """A folder that results cannot be written to."""


class WriteError(OutputError):
    """The folder of a run cannot be written any more; what was measured before is there."""

    exit_code = 1


class RecordsError(BenchError):
    """A folder that results cannot be read from."""


class Interruption(BaseException):
    """A signal asked the run to stop. Not an ``Exception``, so that no handler swallows it."""

    def __init__(self, signum: int) -> None:
        self.signum = signal.Signals(signum)
        super().__init__(self.signum.name)

    @property
    def exit_code(self) -> int:
        """The shell's convention: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + int(self.signum)


def plural(count: int, noun: str, many: str | None = None) -> str:
    """A number of things.

    >>> plural(1, "core"), plural(2, "core"), plural(2, "launch", "launches")
    ('1 core', '2 cores', '2 launches')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """End of an error message: the nearest of the known words, then all of them.

    >>> did_you_mean("dpp", ["single", "ddp"])
    "; did you mean 'ddp'? Known: ddp, single"
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else "."
    return f"{hint} Known: {', '.join(names)}"
