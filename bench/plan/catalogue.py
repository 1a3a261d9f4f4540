"""What a suite can name, described from the definitions themselves."""

from __future__ import annotations

import ast
import inspect
import textwrap

import msgspec

from bench.plan.registry import all_strategies, all_workloads
from bench.plan.suite import parse_suite, shipped_suites


class Detail(msgspec.Struct, frozen=True):
    """A preset, or an option."""

    name: str
    summary: str


class Entry(msgspec.Struct, frozen=True):
    """A workload, strategy or suite."""

    name: str
    summary: str
    details: tuple[Detail, ...] = ()


def workloads() -> list[Entry]:
    """Every workload with its presets and options."""
    return [
        Entry(
            workload.name,
            workload.summary,
            (
                *(
                    Detail(f"{workload.name}:{name}", preset.summary)
                    for name, preset in workload.presets.items()
                ),
                *_options(workload.options),
            ),
        )
        for workload in all_workloads().values()
    ]


def strategies() -> list[Entry]:
    """Every strategy with its options."""
    return [
        Entry(strategy.name, strategy.summary, _options(strategy.options))
        for strategy in all_strategies().values()
    ]


def suites() -> list[Entry]:
    """Every shipped suite."""
    found = []
    for name, text in shipped_suites().items():
        suite = parse_suite(text, source=f"{name}.yaml")
        found.append(Entry(name, suite.description))
    return found


def _options(kind: type[msgspec.Struct]) -> tuple[Detail, ...]:
    described = docstrings(kind)
    return tuple(
        Detail(
            f"{field.name} = {msgspec.json.encode(field.default).decode()}",
            described.get(field.name, ""),
        )
        for field in msgspec.structs.fields(kind)
    )


def docstrings(kind: type) -> dict[str, str]:
    """The text under each field of a class, on one line."""
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
