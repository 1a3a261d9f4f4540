"""``bench plan`` and ``bench list``: what would run, and what a suite can name."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.cli.options import (
    FilterOption,
    JsonOption,
    SuiteArgument,
    WorkloadOption,
    suite_of,
)
from bench.cli.output import print_json, print_text, say
from bench.errors import one_line
from bench.plan.case import Case

if TYPE_CHECKING:
    from bench.plan.suite import Suite


def plan(
    suite: SuiteArgument = None,
    *,
    workload: WorkloadOption = None,
    only: FilterOption = None,
    json: JsonOption = False,
) -> None:
    """Show the cases of a suite in order, every skip with its reason, and what would be sharded."""
    show_plan(suite_of(suite, workload), only=only, launches=None, json=json)


def show_plan(described: Suite, *, only: str | None, launches: int | None, json: bool) -> None:
    """Print the plan; counts come last."""
    from bench.measure.machine import probe_in_child
    from bench.plan.matrix import expand

    planned = expand(described, probe_in_child(), only=only, launches=launches)
    if json:
        print_json(planned)
        return
    different = told_apart([one.case for one in planned])
    for number, one in enumerate(planned, start=1):
        twin = "   twin" if one.case.twin else "   rung" if one.rung_below else ""
        note = f"{different[one.case.id]}{twin}"
        note += f"   skipped: {one_line(one.skip_reason)}" if one.skip_reason else ""
        note += "" if one.skip_reason else "".join(f"   {flag}" for flag in one.flags)
        print_text(f"{number:4}  {one.case.id}  launches {one.effort.launches}{note}")
    from bench.plan.units import problems_in_words, units_in_words
    from bench.run.schedule import schedule

    for model, words in units_in_words(planned):
        print_text(f"shard units of {model}: {one_line(words)}")
    for problem in problems_in_words(planned):
        say(f"warning: {problem}")
    skips = sum(one.skip_reason is not None for one in planned)
    print_text(
        f"cases: {len(planned)}, {skips} of them skipped; launches: {len(schedule(planned, 0))}, "
        "proofs and the passes for communication and memory included"
    )
    if described.budget_s and launches is None:
        print_text(f"and up to {described.budget_s:g} s more where intervals are wider than asked")


def list_(
    what: Annotated[
        Literal["workloads", "strategies", "settings", "data", "suites"],
        typer.Argument(help="What to list."),
    ],
    json: JsonOption = False,
) -> None:
    """List what a suite can name."""
    from bench.plan import catalogue

    entries = getattr(catalogue, what)()
    if json:
        print_json(entries)
        return
    width = min(shutil.get_terminal_size().columns, 100)
    for entry in entries:
        for line in catalogue.lines(entry, width):
            print_text(line)


def told_apart(cases: Sequence[Case]) -> dict[str, str]:
    """By id, the fields that tell a case from others whose ids differ in nothing but the hash."""
    alike: dict[str, list[Case]] = {}
    for case in cases:
        alike.setdefault(case.id.rpartition("-")[0], []).append(case)
    found: dict[str, str] = {}
    for group in alike.values():
        names = [
            name
            for name in Case.__struct_fields__
            if name not in {"id", "label", "twin", "data_options"}  # which its label says
            and any(getattr(one, name) != getattr(group[0], name) for one in group)
        ]
        for case in group:
            found[case.id] = "".join(f"   {name} {getattr(case, name)}" for name in names)
    return found
