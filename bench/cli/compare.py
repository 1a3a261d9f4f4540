"""``bench compare``: what changed between two runs, and what is noise."""
# ruff: noqa: PLC0415 - what needs numbers is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import JsonOption
from bench.cli.output import deliver, say
from bench.errors import BenchError, RecordsError


def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="Results folder: before.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Results folder: after.")],
    *,
    across_machines: Annotated[
        bool,
        typer.Option("--across-machines", help="Compare runs whose environments differ, too."),
    ] = False,
    fail_on_regression: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT", help="Exit with 1 if a case is clearly slower by that much or more."
        ),
    ] = None,
    json: JsonOption = False,
    out: Annotated[Path | None, typer.Option(help="A file to write to, not stdout.")] = None,
) -> None:
    """Say what became faster or slower between two runs, as markdown for a pull request."""
    from bench.analyze.compare import Side, compared, judge
    from bench.report.comparison import in_words, markdown
    from bench.report.comparison_data import as_data
    from bench.report.page import load

    if fail_on_regression is not None and not 0 < fail_on_regression < 100:
        raise BenchError(f"--fail-on-regression: {fail_on_regression:g} is no share in percent")
    sides = []
    for folder in (base, new):
        info, _records, rows = load(folder)
        sides.append(Side(name=str(folder), info=info, rows=rows))
    try:
        found = compared(*sides)
    except (TypeError, AttributeError) as error:
        raise RecordsError(f"{base} or {new}: its environment cannot be read: {error}") from error
    if found.unlike and not across_machines:
        listed = "; ".join(map(in_words, found.unlike))
        raise BenchError(
            f"{base} and {new} were measured in environments that differ: {listed}; "
            "--across-machines compares them all the same, and says so"
        )
    if not found.pairs:
        raise BenchError(f"{base} and {new} have no case in common: nothing to compare")
    judged = None if fail_on_regression is None else judge(found, fail_on_regression)
    if judged is not None and len(judged.unjudged) == len(found.pairs):
        reason = found.pairs[0].change.reason
        raise BenchError(f"{base} and {new}: no case can be compared, such as: {reason}")
    deliver(as_data(found, judged) if json else markdown(found, judged), out)
    if judged is not None and judged.blind:
        count = f"{len(judged.blind)} of {len(found.pairs)} cases"
        say(f"bench: noise is too large to see {fail_on_regression:g} % in {count}")
    if judged is not None and judged.has_failed:
        raise typer.Exit(1)
