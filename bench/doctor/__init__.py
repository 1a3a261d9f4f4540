"""What on this machine will spoil a measurement or a launch, why, and the remedy.

Facts are gathered once (``gather``, ``software``, ``live``); pure checks make findings of them
(``check_host``, ``check_system``, ``check_software``, ``check_devices``); ``show`` prints these.
Nothing is changed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.doctor import check_devices, check_host, check_software, check_system
from bench.doctor.facts import Facts
from bench.doctor.finding import Finding, examine
from bench.doctor.gather import gather_facts, gather_quickly
from bench.doctor.show import line

CHECKS = (
    *check_host.CHECKS,
    *check_system.CHECKS,
    *check_software.CHECKS,
    *check_devices.CHECKS,
)


def diagnose(*, live: bool) -> list[Finding]:
    """All findings about this machine. Takes some seconds.

    Args:
        live: also have ranks start and talk to each other.
    """
    facts = gather_facts()
    findings = examine(CHECKS, facts)
    if live and facts.software is not None and facts.software.machine is not None:
        from bench.doctor.live import check_backends  # noqa: PLC0415 - needs torch

        findings += check_backends(facts.software.machine)
    return findings


def what_spoils_timing(facts: Facts | None = None) -> list[Finding]:
    """Findings to tell before a run: what can be seen at once and speaks against its figures."""
    quick = (check for check in CHECKS if check.is_quick)
    return spoilers(examine(quick, facts or gather_quickly()))


def warnings_of_timing() -> list[str]:
    """Likewise, a line each: what speaks against figures measured here and now."""
    try:
        return [line(one) for one in what_spoils_timing()]
    except Exception as error:  # noqa: BLE001 - a look at the machine must never cost a run
        return [f"warning: this machine cannot be looked at: {type(error).__name__}: {error}"]


def spoilers(findings: Iterable[Finding]) -> list[Finding]:
    """Of findings, those that speak against figures."""
    return [one for one in findings if one.spoils == "timing" and one.status in {"warning", "bad"}]
