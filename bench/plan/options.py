"""Options in words: type, default, what one does, when it helps and what it costs.

The words stand under each field, as its docstring: sentences that say what it does, then one that
begins with "Helps", then one that begins with "Costs". Everything else is read off the definition.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from types import UnionType
from typing import Any, Literal

import msgspec
from msgspec import inspect as types

PARTS = re.compile(r"(?:^|(?<=[.!?)] ))(?=(?:Helps|Costs)\b)")
"""Where a sentence begins that says when an option helps, or what it costs."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option, or one field of a suite."""

    name: str
    type: str
    """What it may be, in words."""
    default: Any
    what: str
    """What it does."""
    helps: str
    """When it helps; empty where its docstring does not say."""
    costs: str
    """What it costs; likewise."""

    @property
    def lacks(self) -> list[str]:
        """What its description does not say."""
        return [name for name in ("type", "what", "helps", "costs") if not getattr(self, name)]

    @property
    def default_text(self) -> str:
        """As a suite would say it."""
        return _as_suite(self.default)


def _as_suite(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {_as_suite(one)}" for key, one in value.items()) + "}"
        case str():
            return value
        case float():
            return f"{value:g}"
    return msgspec.json.encode(value).decode()


def options_of(kind: type[msgspec.Struct]) -> tuple[Option, ...]:
    """All fields of a struct, those that it inherits included."""
    described = docstrings(kind)
    found = []
    for field in msgspec.structs.fields(kind):
        parts = PARTS.split(described.get(field.name, ""))
        default = field.default
        if default is msgspec.NODEFAULT:
            factory = field.default_factory
            default = None if factory is msgspec.NODEFAULT else factory()
        found.append(
            Option(
                name=field.name,
                type=type_words(field.type),
                default=msgspec.to_builtins(default),
                what=_part(parts, ""),
                helps=_part(parts, "Helps"),
                costs=_part(parts, "Costs"),
            )
        )
    return tuple(found)


def _part(parts: list[str], word: str) -> str:
    """The sentences from one that begins with a word; without a word, those before any such."""
    if not word:
        return parts[0].strip() if not parts[0].startswith(("Helps", "Costs")) else ""
    return next((part.strip() for part in parts if part.startswith(word)), "")


def type_words(kind: Any) -> str:
    """A type as a suite's author thinks of it, such as: number above 0 | null."""
    choices = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:  # in the order of the definition
        return " | ".join(map(str, choices))
    if typing.get_origin(kind) in {typing.Union, UnionType}:
        return " | ".join(sorted(map(type_words, choices), key=lambda words: words == "null"))
    return _plain_type(types.type_info(kind))


def _plain_type(info: types.Type) -> str:
    match info:
        case types.Metadata(type=inner):
            return _plain_type(inner)
        case types.IntType(ge=least):
            return "whole number" + ("" if least is None else f" from {least}")
        case types.FloatType(gt=above, ge=least):
            words = "" if least is None else f" from {least:g}"
            return "number" + (words if above is None else f" above {above:g}")
        case types.ListType(item_type=item) | types.VarTupleType(item_type=item):
            return f"list of {_plain_type(item)}"
        case types.DictType(key_type=key, value_type=value):
            return f"mapping of {_plain_type(key)} to {_plain_type(value)}"
        case types.StructType(fields=fields):
            return f"mapping of {', '.join(field.encode_name for field in fields)}"
    return NAMES.get(type(info), type(info).__name__.removesuffix("Type").lower())


NAMES: dict[type, str] = {
    types.BoolType: "true | false",
    types.NoneType: "null",
    types.StrType: "text",
    types.AnyType: "anything",
}


def docstrings(kind: type) -> dict[str, str]:
    """The text under each field of a class and of those it inherits from, on one line."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= _own_docstrings(base)
    return found


def _own_docstrings(kind: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                found[name] = " ".join(words.split())
    return found
