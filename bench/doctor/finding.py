"""A finding, the check that makes it, and what a check says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from bench.doctor.facts import Facts

Status = Literal["ok", "unknown", "warning", "bad"]
SEVERITY: tuple[Status, ...] = ("ok", "unknown", "warning", "bad")
"""From what needs nothing done to what must be put right before a figure can be believed."""
Spoils = Literal["timing", "launch"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a check says of this machine."""

    status: Status
    found: str
    remedy: str | None = None
    """What to do. Beside ``ok``: what may still be worth doing."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict, with what it is about."""

    name: str
    status: Status
    spoils: Spoils
    """A figure's truth, or whether processes start and talk at all."""
    found: str
    why: str
    """Why it matters."""
    remedy: str | None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question to the facts."""

    name: str
    spoils: Spoils
    why: str
    examine: Callable[[Facts], Verdict | None]
    """None where the question makes no sense on this machine."""
    is_quick: bool = False
    """Whether its facts are read in a moment, so that ``bench run`` asks it as well."""

    def finding(self, verdict: Verdict) -> Finding:
        """The verdict with the check's name and reason."""
        return Finding(
            name=self.name,
            status=verdict.status,
            spoils=self.spoils,
            found=verdict.found,
            why=self.why,
            remedy=verdict.remedy,
        )


def ok(found: str, hint: str | None = None) -> Verdict:
    """Nothing to put right."""
    return Verdict(status="ok", found=found, remedy=hint)


def unknown(found: str, remedy: str | None = None) -> Verdict:
    """The machine does not say."""
    return Verdict(status="unknown", found=found, remedy=remedy)


def warning(found: str, remedy: str) -> Verdict:
    """May spoil something."""
    return Verdict(status="warning", found=found, remedy=remedy)


def bad(found: str, remedy: str) -> Verdict:
    """Will spoil something."""
    return Verdict(status="bad", found=found, remedy=remedy)


def worst(statuses: Iterable[Status]) -> Status:
    """The most severe of them; ``ok`` of none."""
    return max(statuses, key=SEVERITY.index, default="ok")


def together(problems: Iterable[Verdict | None], otherwise: Verdict) -> Verdict:
    """Several problems as one verdict, as severe as the worst of them; ``otherwise`` without any.

    >>> together([None, warning("b", "do b"), bad("c", "do c")], ok("a")).found
    'b; c'
    """
    there = [one for one in problems if one is not None]
    if not there:
        return otherwise
    return Verdict(
        status=worst(one.status for one in there),
        found="; ".join(one.found for one in there),
        remedy="; ".join(dict.fromkeys(one.remedy for one in there if one.remedy)) or None,
    )


def examine(checks: Iterable[Check], facts: Facts) -> list[Finding]:
    """What the checks say of the facts; nothing of those that do not apply."""
    verdicts = ((check, check.examine(facts)) for check in checks)
    return [check.finding(verdict) for check, verdict in verdicts if verdict is not None]
