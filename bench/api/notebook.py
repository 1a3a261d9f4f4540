"""A function of a notebook as a file: its source, and that of all it needs of other cells."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from bench.errors import BenchError

PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, list, dict, set)
HEADER = '"""A function of a notebook, and what it needs of it."""\n\nimport torch\n'


def module_text(make: Callable[..., Any]) -> str:
    """The text of a module that defines a function.

    Names that it uses are imported again where they are modules, or come from one; plain values are
    written out; functions and classes of the notebook come along, with what they use.

    Raises:
        BenchError: its source cannot be had, or it uses something that cannot be written down.
    """
    parts: dict[str, str] = {}
    _add(make.__name__, make, make.__globals__ if inspect.isfunction(make) else {}, parts)
    return HEADER + "".join(f"\n{part}\n" for part in parts.values())


def _add(name: str, item: Any, namespace: dict[str, Any], parts: dict[str, str]) -> None:
    """Write an item down after all that it needs."""
    if name in parts:
        return
    if not _is_defined_here(item, namespace):
        parts[name] = _statement(name, item)
        return
    source = _source_of(item)
    parts[name] = ""  # so that what it needs may need it too
    for used in _names(source):
        if used in namespace and used != name:
            _add(used, namespace[used], namespace, parts)
    del parts[name]
    alias = "" if item.__name__ == name else f"\n{name} = {item.__name__}"
    parts[name] = source + alias


def _is_defined_here(item: Any, namespace: dict[str, Any]) -> bool:
    is_code = inspect.isfunction(item) or inspect.isclass(item)
    return is_code and item.__module__ == namespace.get("__name__", "__main__")


def _source_of(item: Any) -> str:
    try:
        found = _class_source(item) if inspect.isclass(item) else None
        return found or textwrap.dedent(inspect.getsource(item))
    except (OSError, TypeError, SyntaxError) as error:
        raise BenchError(
            f"the source of {item.__name__} cannot be had here; write it to a file, and pass "
            "'file.py:NAME' in its place"
        ) from error


def _class_source(kind: type) -> str | None:
    """The source of a class by way of its methods: Python looks for the file of its module."""
    for method in filter(inspect.isfunction, vars(kind).values()):
        lines = linecache.getlines(method.__code__.co_filename)
        for node in reversed(ast.parse("".join(lines)).body):
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                return "".join(lines[first - 1 : node.end_lineno])
    return None


def _names(source: str) -> Iterator[str]:
    seen = {node.id: None for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    yield from (name for name in seen if not hasattr(builtins, name))


def _statement(name: str, item: Any) -> str:
    if isinstance(item, ModuleType):
        return f"import {item.__name__} as {name}"
    where, own_name = getattr(item, "__module__", None), getattr(item, "__qualname__", "")
    is_named = isinstance(where, str) and own_name.isidentifier()
    if is_named and getattr(sys.modules.get(str(where)), own_name, None) is item:
        return f"from {where} import {own_name} as {name}"
    if isinstance(item, torch.dtype | torch.device):
        return (
            f"{name} = {item!r}"
            if isinstance(item, torch.dtype)
            else (f"{name} = torch.device({str(item)!r})")
        )
    if isinstance(item, PLAIN) and _can_be_written(item):
        return f"{name} = {item!r}"
    raise BenchError(
        f"the function uses {name}, a {type(item).__name__} of this notebook, which others cannot "
        "see: make it within the function, or write both to a file, and pass 'file.py:NAME'"
    )


def _can_be_written(item: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(item)) == item)
    except (ValueError, SyntaxError):
        return False
