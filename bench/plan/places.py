"""Where the user's own data are that a suite names: found by the process that plans.

A path counts from the suite's folder, then from the current one. The ranks are told where it is, so
that a case is the same wherever its data lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.errors import BenchError

_places: dict[str, Path] = {}
"""What this process knows of each path."""


def locate(path: str, folders: Sequence[Path]) -> Path:
    """Find what a path names, and remember where.

    Args:
        path: as a suite has it.
        folders: where to look, before the current one.

    Raises:
        BenchError: there is nothing of that name.
    """
    places = list(dict.fromkeys(one.absolute() for one in (*folders, Path.cwd())))
    found = next((place / path for place in places if (place / path).exists()), None)
    if found is None:
        raise BenchError(f"there is no {path} in {', '.join(map(str, places))}")
    _places[path] = found.resolve()
    return _places[path]


def place_of(path: str | None) -> str | None:
    """Where a path of a case is on this host; None for none.

    A host that was told of the case by another one, and so has not planned it, looks in its current
    folder.

    Raises:
        BenchError: there is nothing of that name.
    """
    if path is None:
        return None
    known = _places.get(path)
    return str(known if known is not None else locate(path, []))
