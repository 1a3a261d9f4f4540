"""The command as a user runs it."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

import bench.doctor
from bench.cli import run_command_line
from bench.doctor.facts import Cores, Facts, Load
from bench.doctor.finding import Finding, examine
from bench.doctor.gather import gather_quickly
from bench.doctor.show import line, summary, table
from tests.doctor.machines import changed, healthy

QUICK_S = 0.1
"""Of CPU time. Asked for are 0.05 s; a busy machine that runs tests takes longer."""


def install(monkeypatch: pytest.MonkeyPatch, facts: Facts) -> None:
    monkeypatch.setattr(bench.doctor, "gather_facts", lambda: facts)
    monkeypatch.setattr(bench.doctor, "gather_quickly", lambda: facts)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run_command_line(["doctor", "--no-live", *arguments])
    return code, capsys.readouterr().out


def test_exit_code_1_means_that_something_is_bad(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, healthy())
    code, shown = run(capsys)
    assert code == 0
    assert "bad" not in shown
    install(monkeypatch, changed("load", busy=0.2))
    assert run(capsys)[0] == 0
    install(monkeypatch, changed("load", busy=0.9))
    code, shown = run(capsys)
    assert code == 1
    assert "why: the slowest rank" in shown
    assert "do: wait for them" in shown
    assert shown.splitlines()[-1].endswith(": load")


def test_json_has_every_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, changed("load", busy=0.9))
    code, shown = run(capsys, "--json")
    assert code == 1
    found: list[dict[str, Any]] = json.loads(shown)
    assert all(one.keys() == set(Finding.__struct_fields__) for one in found)
    assert [one["name"] for one in found if one["status"] == "bad"] == ["load"]


def test_this_machine_is_looked_at_from_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command_line(["doctor", "--json"])
    found = msgspec.json.decode(capsys.readouterr().out, type=list[Finding])
    assert code == int(any(one.status == "bad" for one in found))
    by_name = {one.name: one for one in found}
    assert by_name["torch"].status == "ok", by_name["torch"]
    assert by_name["live: gloo on cpu"].status == "ok", by_name["live: gloo on cpu"]


def test_without_torch_nothing_is_tried_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, changed("software", failure="ImportError: no libc10"))
    found = {one.name: one.status for one in bench.doctor.diagnose(live=True)}
    assert found["torch"] == "bad"
    assert not any(name.startswith("live") for name in found)


def test_before_a_run_stands_what_spoils_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worn = msgspec.structs.replace(
        changed("cores", quota=2.5), load=Load(average=9.0, runnable=4, steal=0.0)
    )
    install(monkeypatch, worn)
    # The filter ends the run before anything is measured: the warnings come first.
    assert run_command_line(["run", "smoke", "--filter", "seed == 9"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("warning: cores: a quota of 2.5 cores")
    assert lines[1].startswith("warning: load: load average 9.00")
    assert lines[2].startswith("suite smoke:")


def test_a_look_that_fails_stops_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Facts:
        raise ValueError("no such number")

    monkeypatch.setattr(bench.doctor, "gather_quickly", fail)
    assert run_command_line(["run", "smoke", "--filter", "seed == 9"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("cannot be looked at: ValueError: no such number")
    assert lines[-1].startswith("bench: smoke.yaml: no case matches")


def test_the_look_before_a_run_is_quick() -> None:
    gather_quickly()
    begin_s = time.process_time()
    bench.doctor.what_spoils_timing()
    assert time.process_time() - begin_s < QUICK_S


def test_a_table_fits_its_terminal() -> None:
    facts = msgspec.structs.replace(
        changed("load", busy=0.9), cores=Cores(quota=2.5, usable=(0,), virtualised=True)
    )
    found = examine(bench.doctor.CHECKS, facts)
    for width in (60, 80, 200):
        lines = table(found, width).splitlines()
        assert max(map(len, lines)) <= max(width, 66)
    assert "  hint: " in table(found, 80)


def test_a_summary_names_what_is_bad() -> None:
    found = examine(bench.doctor.CHECKS, changed("load", busy=0.9))
    count = sum(one.status == "ok" for one in found)
    assert summary(found) == f"1 bad, {count} ok: load"
    (load,) = [one for one in found if one.name == "load"]
    assert line(load) == (
        "bad: load: other programs take 90% of the cores; wait for them, or stop them, and look "
        "again"
    )
