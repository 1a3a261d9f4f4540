"""What has changed between the plan that a run was started with and the one at hand, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bench.errors import plural
from bench.plan.case import PlannedCase

SHOWN = 3
"""Cases that are named."""
DERIVED = frozenset({"case.id", "case.label"})
"""Fields that follow from others."""
ALIKE = 4
"""Fields in which a case may differ from another and still be that one, changed."""


def changes(before: Sequence[PlannedCase], now: Sequence[PlannedCase]) -> str:
    """The first cases that differ, with their fields' old and new values; empty where none does."""
    old, new = _by_id(before), _by_id(now)
    gone = [id_ for id_ in old if id_ not in new]
    added = [id_ for id_ in new if id_ not in old]
    said = [(id_, _difference(old[id_], new[id_])) for id_ in old if id_ in new]
    said = [(id_, fields) for id_, fields in said if fields]
    for id_ in list(gone):
        other = min(added, key=lambda one: len(_difference(old[id_], new[one])), default=None)
        fields = _difference(old[id_], new[other]) if other is not None else {}
        if other is not None and len(fields) <= ALIKE:
            said.append((id_, fields))
            gone.remove(id_)
            added.remove(other)
    parts = [f"{id_}: {_words(fields)}" for id_, fields in said[:SHOWN]]
    if len(said) > SHOWN:
        parts.append(f"{plural(len(said) - SHOWN, 'more case')} likewise")
    parts += [f"{_names(gone)} not planned now"] if gone else []
    parts += [f"{_names(added)} not planned then"] if added else []
    return "; ".join(parts)


def _by_id(plan: Iterable[PlannedCase]) -> dict[str, dict[str, Any]]:
    return {one.case.id: dict(_flat(msgspec.to_builtins(one))) for one in plan}


def _flat(value: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}", inner


def _difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [name for name in {**old, **new} if name not in DERIVED]
    pairs = {name: (old.get(name), new.get(name)) for name in names}
    return {name: (then, now) for name, (then, now) in pairs.items() if then != now}


def _words(fields: Mapping[str, tuple[Any, Any]]) -> str:
    def text(value: Any) -> str:
        return msgspec.json.encode(value).decode()

    return ", ".join(f"{name} {text(then)} -> {text(now)}" for name, (then, now) in fields.items())


def _names(ids: Sequence[str]) -> str:
    more = f" and {plural(len(ids) - SHOWN, 'more case')}" if len(ids) > SHOWN else ""
    return f"{', '.join(ids[:SHOWN])}{more}"
