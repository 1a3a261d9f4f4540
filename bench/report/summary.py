"""A run in a few lines: what was measured, what was spent on it, when, and where."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bench.analyze.effort import further_s, relative_width
from bench.analyze.launches import drift_of
from bench.analyze.rows import Row
from bench.errors import plural
from bench.records.record import Record, RunInfo


def summary(info: RunInfo, records: Sequence[Record], rows: Sequence[Row]) -> str:
    """How much of the plan was measured, what was spent on it, and when."""
    counts = Counter(row.status for row in rows)
    words = ", ".join(
        f"{count} {'measured' if status == 'ok' else status.replace('_', ' ')}"
        for status, count in counts.items()
    )
    twice = sum(row.twin is not None and bool(row.twin.launches) for row in rows)
    words += f", {twice} of them twice" if twice else ""
    ended = "has not ended"
    if info.ended_at:
        ended = f"ended {info.ended_at} ({info.ended_by})"
    return (
        f"{plural(len(rows), 'case')}: {words}. {_spent(info, records, rows)}{_drift(rows)} "
        f"Started {info.started_at}, {ended}; order of launches from seed {info.seed}."
    )


def _spent(info: RunInfo, records: Sequence[Record], rows: Sequence[Row]) -> str:
    """Launches, what went into those beyond the plan's own number, and what that left wide."""
    timed = [one for one in records if one.pass_ == "timing" and one.status == "ok"]
    words = f"{plural(len(timed), 'timed launch', 'timed launches')}."
    budget_s = info.suite.get("budget_s")
    if not isinstance(budget_s, int | float) or budget_s <= 0:
        return words
    efforts = _efforts(info.suite.get("planned"))
    own = {id_: effort.launches for id_, effort in efforts.items()}
    further = sum(one.launch >= own.get(one.case.id, one.launch + 1) for one in timed)
    wide = [
        row
        for row in rows
        if row.samples_per_s is not None
        and row.case.id in efforts
        and (relative_width(row.samples_per_s) or 0.0) > efforts[row.case.id].launch_interval
    ]
    return (
        f"{words} {further} of them beyond the plan's, where intervals were wider than asked: "
        f"{further_s(records, own):.0f} s of a budget of {budget_s:.0f} s; "
        f"{plural(len(wide), 'interval')} still wider than asked."
    )


class _Effort(msgspec.Struct, frozen=True):
    """What a summary needs of a case's effort; earlier versions did not ask for an interval."""

    launches: int
    launch_interval: float = math.inf


def _efforts(planned: object) -> dict[str, _Effort]:
    """What the plan gives each case, by id, as far as it can be read."""
    found: dict[str, _Effort] = {}
    for one in planned if isinstance(planned, list) else []:
        match one:
            case {"case": {"id": str(id_)}, "effort": dict() as effort}:
                with contextlib.suppress(msgspec.ValidationError):
                    found[id_] = msgspec.convert(effort, _Effort)
    return found


def _drift(rows: Sequence[Row]) -> str:
    twins = [row.twin.launches for row in rows if row.twin is not None]
    drift = drift_of([*(row.launches for row in rows), *twins])
    if drift is None or not drift.is_clear:
        return ""
    way = "slower" if drift.change < 0 else "faster"
    words = f" From the first launch to the last all became {abs(drift.change):.1%} {way}"
    if drift.is_taken_out:
        return f"{words}: figures are given as in the middle of the run."
    return f"{words}: measure again on a quieter machine."


def machine_lines(info: RunInfo) -> list[str]:
    """What the figures were measured on and with."""
    environment = info.environment
    cores = cores_used(info)
    memory = environment.get("memory_bytes")
    return [
        f"CPU: {environment.get('cpu')}, {'?' if cores is None else plural(cores, 'core')} "
        f"used, {memory / 2**30 if isinstance(memory, int) else 0:.1f} GiB of memory",
        f"accelerators: {', '.join(device_names(info)) or 'none'}"
        + _known("; driver {}", environment.get("driver")),
        f"system: {environment.get('system')}" + _surroundings(environment),
        "versions: " + ", ".join(f"{name} {v}" for name, v in info.versions.items()),
        f"fingerprint: {info.environment_fingerprint}; source: {environment.get('source')}"
        + _known("; commit {}", environment.get("commit")),
    ]


def cores_used(info: RunInfo) -> int | None:
    """Cores of all hosts together; None where they are not known."""
    network = info.environment.get("network")
    shared = network.get("cores") if isinstance(network, dict) else None
    if isinstance(shared, int):  # of the machine that emulates them
        return shared
    lists = [one["cores"] for one in _hosts(info) if isinstance(one.get("cores"), list)]
    if not lists:
        return None
    if isinstance(network, dict) and network.get("kind") == "emulated":
        return len({str(core) for cores in lists for core in cores})
    return sum(map(len, lists))


def _hosts(info: RunInfo) -> list[Mapping[str, Any]]:
    """What each host is like; the one that there is, if there are not several."""
    hosts = info.environment.get("hosts")
    listed = hosts if isinstance(hosts, list) else []
    known: list[Mapping[str, Any]] = [one for one in listed if isinstance(one, dict)]
    return known or [info.environment]


def _surroundings(environment: Mapping[str, Any]) -> str:
    """What shares the machine with the run, and who sets its clocks."""
    governors, boost = environment.get("governors"), environment.get("boost")
    parts = [
        _known(", in a container ({})", environment.get("container")),
        ", on a virtual machine" if environment.get("virtualised") is True else "",
        _quota(environment.get("quota_cores")),
    ]
    if isinstance(governors, list):
        parts.append(f"; clock governor {', '.join(map(str, governors))}")
    if isinstance(boost, bool):
        parts.append(f"; boost {'on' if boost else 'off'}")
    return "".join(parts)


def _quota(cores: object) -> str:
    if not isinstance(cores, int | float) or not cores:
        return ""
    return f"; a quota of {cores:g} core{'' if cores == 1 else 's'}"


def _known(words: str, fact: object) -> str:
    """Words with a fact in them; nothing where there is none."""
    return words.format(fact) if fact else ""


def device_names(info: RunInfo) -> list[str]:
    """Names of the accelerators of all hosts together."""
    lists = [one["devices"] for one in _hosts(info) if isinstance(one.get("devices"), list)]
    every = [device for devices in lists for device in devices]
    return [str(one.get("name")) if isinstance(one, dict) else str(one) for one in every]
