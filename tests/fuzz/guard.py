"""Nothing may be imported that was not named, no process started, no file written."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

STARTS = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.spawn",
    "subprocess.Popen",
}
REACHES_OUT = {"socket.bind", "socket.connect", "socket.getaddrinfo"}
LOADS = {"pickle.find_class", "marshal.loads"}
CHANGES = {
    "os.chmod",
    "os.chown",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "shutil.rmtree",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class BreachError(BaseException):
    """No ``Exception``, so that nothing under test handles it."""


class _Guard:
    """What the hook looks at: an audit hook stays until the interpreter ends."""

    named: frozenset[str] | None = None
    """Modules that may be imported; None while nobody watches."""
    breaches: list[str] = []  # noqa: RUF012 - one guard, one list
    is_hooked = False


def _breach(words: str) -> None:
    _Guard.breaches.append(words)  # also where it is raised inside of a broad except
    raise BreachError(words)


LOOKED_FOR = frozenset({"deepspeed"})
"""Packages whose being there is asked for; importing one raises an event all the same."""


class _Finder:
    """Asked first for every module: importlib's own functions raise no event."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        del path, target
        if _Guard.named is not None and name not in {*_Guard.named, *LOOKED_FOR}:
            _breach(f"imports {name}")


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    named = _Guard.named
    if named is None:
        return
    if event == "import":
        breach = None if str(arguments[0]) in named else f"imports {arguments[0]}"
    elif event == "open":
        path, mode, flags = arguments
        writes = any(letter in str(mode or "") for letter in "wax+")
        writes = writes or (isinstance(flags, int) and bool(flags & WRITING))
        breach = f"opens {path!r} for writing" if writes else None
    else:
        is_bad = event in STARTS or event in REACHES_OUT or event in LOADS or event in CHANGES
        breach = f"{event} {arguments!r}" if is_bad else None
    if breach is not None:
        _breach(breach)


@contextlib.contextmanager
def guarded(named: frozenset[str] = frozenset()) -> Iterator[None]:
    """Watch what is done inside.

    Args:
        named: modules whose import is asked for, and so allowed.

    Raises:
        BreachError: something was done that must not be.
    """
    if not _Guard.is_hooked:
        sys.addaudithook(_hook)
        _Guard.is_hooked = True
    _Guard.breaches = []
    _Guard.named = named
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        _Guard.named = None
        sys.meta_path.remove(finder)
    if _Guard.breaches:
        raise BreachError("; ".join(_Guard.breaches))
