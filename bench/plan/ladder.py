"""Ladders: settings that a suite adds one after the other, each row keeping those before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from bench.plan.reader import Reader

RUNG_SETTINGS = frozenset(
    {
        "precision",
        "compile",
        "compile_scope",
        "accumulation_steps",
        "accumulation_sync",
        "optimizer_kernels",
        "activation_checkpointing",
        "env",
        "data",
    }
)
"""Settings that a rung may change: rows that differ in more are not compared with each other."""
OPTIONS = "options"


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """What one rung adds to the one below it."""

    path: str
    """Where it stands in the file, for messages."""
    settings: dict[str, Any]
    """Checked values of ``Settings`` fields."""
    options: dict[str, Any]
    """Of the block's strategies, checked when they are known."""


def read_ladder(reader: Reader, value: Any, path: str) -> tuple[Rung, ...]:
    """The ``ladder`` of a block: a list of mappings, none of whose values is an axis."""
    return tuple(_rungs(reader, value, path)) if value is not None else ()


def _rungs(reader: Reader, value: Any, path: str) -> Iterator[Rung]:
    for index, item in enumerate(reader.items(value, path)):
        where = f"{path}[{index}]"
        given = reader.mapping(item, where, RUNG_SETTINGS | {OPTIONS})
        options = reader.mapping(given.get(OPTIONS) or {}, f"{where}.{OPTIONS}", None)
        axes = reader.axes({k: v for k, v in given.items() if k != OPTIONS}, where)
        for name, values in axes.items():
            if len(values) != 1 or isinstance(given[name], list):
                raise reader.fail("a rung has one value of each setting", f"{where}.{name}")
        if not axes and not options:
            raise reader.fail("changes nothing", where)
        settings = {name: values[0] for name, values in axes.items()}
        yield Rung(path=where, settings=settings, options=options)
