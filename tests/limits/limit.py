from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """One promise with what was measured."""

    what: str
    measured: str
    bar: str
    kept: bool
