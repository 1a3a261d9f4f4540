"""What a suite can name, described from the definitions themselves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import msgspec

from bench.plan.fields import Settings
from bench.plan.options import Option, options_of
from bench.plan.registry import all_families, all_sources, all_strategies, all_workloads
from bench.plan.suite import parse_suite, shipped_suites
from workloads.base import Family

INDENT = "    "


class Detail(msgspec.Struct, frozen=True):
    """A preset."""

    name: str
    summary: str


class Entry(msgspec.Struct, frozen=True):
    """A workload, strategy, data source or suite, or the settings that every strategy has."""

    name: str
    summary: str
    presets: tuple[Detail, ...] = ()
    options: tuple[Option, ...] = ()


def workloads() -> list[Entry]:
    """Every workload with its presets and options, and each family as one entry."""
    own = [
        Entry(
            workload.name,
            workload.summary,
            tuple(
                Detail(f"{workload.name}:{name}", preset.summary)
                for name, preset in workload.presets.items()
            ),
            options_of(workload.options),
        )
        for workload in all_workloads().values()
    ]
    return [*own, *map(_family, all_families().values())]


def _family(family: Family) -> Entry:
    try:
        presets = tuple(Detail(f"{family.name}:{name}", "") for name in family.names())
        summary = f"{family.summary}: {family.name}:NAME, with the presets tiny, cpu and full"
    except ImportError as error:
        presets, summary = (), f"{family.summary}; not here: {error}"
    return Entry(family.name, summary, presets, options_of(family.options))


def strategies() -> list[Entry]:
    """Every strategy with its options."""
    return [
        Entry(strategy.name, strategy.summary, (), options_of(strategy.options))
        for strategy in all_strategies().values()
    ]


def data() -> list[Entry]:
    """Every source of batches with its options."""
    return [
        Entry(source.name, source.summary, (), options_of(source.options))
        for source in all_sources().values()
    ]


def settings() -> list[Entry]:
    """What a suite may set for every strategy."""
    summary = "fields of defaults and of a block, for every strategy; a list of values is an axis"
    return [Entry("settings", summary, (), options_of(Settings))]


def suites() -> list[Entry]:
    """Every shipped suite."""
    found = []
    for name, text in shipped_suites().items():
        suite = parse_suite(text, source=f"{name}.yaml")
        found.append(Entry(name, suite.description))
    return found


def lines(entry: Entry, width: int) -> Iterator[str]:
    """An entry for a terminal of so many columns."""
    yield from _wrapped(f"{entry.name}: {entry.summary}", width, "", INDENT)
    names = [preset.name for preset in entry.presets if not preset.summary]
    if names:
        yield from _wrapped(", ".join(names), width, INDENT, INDENT * 2)
    for preset in (one for one in entry.presets if one.summary):
        yield from _wrapped(f"{preset.name}  {preset.summary}", width, INDENT, INDENT * 2)
    for option in entry.options:
        head = f"{option.name}: {option.type}; default {option.default_text}"
        yield from _wrapped(head, width, INDENT, INDENT * 2)
        for text in filter(None, (option.what, option.helps, option.costs)):
            yield from _wrapped(text.replace("``", ""), width, INDENT * 2, INDENT * 2)


def _wrapped(text: str, width: int, first: str, further: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )
