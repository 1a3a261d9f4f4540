"""Findings as a table for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from bench.doctor.finding import SEVERITY, Finding
from bench.errors import one_line

NARROWEST = 40
"""Of the column of words."""


def table(findings: Sequence[Finding], width: int) -> str:
    """A table, and below it how many findings are what.

    Args:
        findings: in their order.
        width: of the terminal, in characters.
    """
    first = max((len(one.name) for one in findings), default=0)
    words = max(NARROWEST, width - max(first, len("check  ")) - len("status  ") - 4)
    body = [[one.name, one.status, _cell(one, words)] for one in findings]
    # Cells are wrapped already: tabulate must keep their lines as they are.
    text = tabulate(
        body,
        ["check", "status", "found"],
        tablefmt="simple",
        disable_numparse=True,
        preserve_whitespace=True,
    )
    return f"{text}\n\n{summary(findings)}"


def _cell(one: Finding, width: int) -> str:
    parts = [("", one.found)]
    if one.status in {"warning", "bad"}:
        parts.append(("why: ", one.why))
    if one.remedy is not None:
        parts.append(("hint: " if one.status == "ok" else "do: ", one.remedy))
    return "\n".join(
        textwrap.fill(
            one_line(text, limit=2000),
            width=width,
            initial_indent=begin,
            subsequent_indent="  " if begin else "",
            break_on_hyphens=False,
        )
        for begin, text in parts
    )


def summary(findings: Sequence[Finding]) -> str:
    """How many findings are what, and the names of those that are bad."""
    counts = {status: [f.name for f in findings if f.status == status] for status in SEVERITY}
    nouns = {"warning": "warnings"}
    told = [
        f"{len(names)} {status if len(names) == 1 else nouns.get(status, status)}"
        for status, names in reversed(counts.items())
        if names
    ]
    named = f": {', '.join(counts['bad'])}" if counts["bad"] else ""
    return ", ".join(told) + named


def line(one: Finding) -> str:
    """A finding as one line."""
    remedy = f"; {one.remedy}" if one.remedy else ""
    return f"{one.status}: {one.name}: {one.found}{remedy}"
