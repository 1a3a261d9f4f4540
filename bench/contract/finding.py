"""What a check of somebody's code has found, and how it is shown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

import msgspec

from bench.errors import one_line, plural


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    subject: str
    """Reference of the strategy or workload."""
    name: str
    status: Literal["ok", "bad", "skipped"]
    found: str = ""
    """What is wrong, or why it was not looked at."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.name}: {self.found or self.status}"


def lines(findings: Sequence[Finding], width: int) -> list[str]:
    """For a terminal of so many columns: a line for each, and more for what is wrong."""
    told: list[str] = []
    subject = None
    for one in findings:
        if one.subject != subject:
            subject = one.subject
            told.append(one_line(subject))
        told.append(f"  {one.status:8} {one_line(one.name)}")
        if one.found:
            told += textwrap.wrap(
                one_line(one.found, limit=2000),
                width,
                initial_indent=" " * 11,
                subsequent_indent=" " * 11,
                break_on_hyphens=False,
            )
    bad = sum(one.status == "bad" for one in findings)
    told.append(f"{plural(len(findings), 'check')}, {bad} bad")
    return told
