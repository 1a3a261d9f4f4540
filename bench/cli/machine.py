"""A look at this machine before something is measured on it."""
# ruff: noqa: PLC0415 - what looks at the machine is imported once it is needed

from __future__ import annotations

from bench.cli.output import say


def warn_of_this_machine() -> None:
    """What speaks against figures measured here and now, a line each. It stops nothing."""
    from bench.doctor import what_spoils_timing
    from bench.doctor.show import line

    try:
        findings = what_spoils_timing()
    except Exception as error:  # noqa: BLE001 - a look at the machine must never cost a run
        say(f"warning: this machine cannot be looked at: {type(error).__name__}: {error}")
        return
    for one in findings:
        say(line(one))
