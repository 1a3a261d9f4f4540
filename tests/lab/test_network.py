from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.errors import BenchError
from bench.lab import network as lab
from bench.lab.enter import enter, made_in
from bench.lab.network import (
    NAME,
    Layout,
    Link,
    abandoned,
    building,
    carry_out,
    existing,
    missing,
    remove,
    remove_all,
    shape,
    shaping,
)
from bench.lab.rate import measure
from bench.plan.case import bytes_per_s

LAYOUT = Layout(maker=417, hosts=2)
needs_lab = pytest.mark.skipif(missing() is not None, reason=f"no laboratory here: {missing()}")


def test_names_hold_who_made_them() -> None:
    assert LAYOUT.names == ["bench-417-switch", "bench-417-h0", "bench-417-h1"]
    assert all(map(NAME.fullmatch, LAYOUT.names))


def test_every_command_is_about_a_namespace_of_ours() -> None:
    commands = [*building(LAYOUT), *shaping(LAYOUT, Link(rate="1gbit", latency_ms=5.0))]
    for command in commands:
        name = command[2] if command[1] == "-n" else command[3]
        assert name in LAYOUT.names, command
    with pytest.raises(BenchError, match="none of our namespaces"):
        carry_out(("ip", "-n", "production", "link", "set", "lo", "down"))


def test_a_rate_is_a_bucket_at_both_ends_of_every_cable() -> None:
    buckets = list(shaping(LAYOUT, Link(rate="1gbit")))
    places = [(command[2], command[6]) for command in buckets]
    assert places == [
        ("bench-417-h0", "eth0"),
        ("bench-417-h1", "eth0"),
        ("bench-417-switch", "h0"),
        ("bench-417-switch", "h1"),
    ]
    for command in buckets:
        assert command[7:] == (
            "root", "handle", "1:", "tbf", "rate", "1gbit", "burst", "262144", "latency", "0.1s",
        )  # fmt: skip


def test_a_fast_bucket_holds_a_millisecond() -> None:
    (first, *_) = shaping(LAYOUT, Link(rate="10gbit"))
    assert first[first.index("burst") + 1] == "1250000"  # 10^10 / 8 / 1000


def test_packets_are_held_back_where_they_leave_a_host() -> None:
    commands = list(shaping(LAYOUT, Link(rate="1gbit", latency_ms=2.5)))
    held = [command for command in commands if "netem" in command]
    assert [command[2] for command in held] == ["bench-417-h0", "bench-417-h1"]
    assert held[0][7:] == ("parent", "1:1", "netem", "delay", "2.5ms", "limit", "100000")
    (alone, *_) = shaping(LAYOUT, Link(latency_ms=2.5))
    assert alone[7:9] == ("root", "netem")
    assert list(shaping(LAYOUT, Link())) == []


@pytest.mark.parametrize(
    ("system", "user", "tools", "words"),
    [
        ("darwin", 0, True, "Linux network namespaces"),
        ("linux", 1000, True, "it needs root"),
        ("linux", 0, False, "it needs ip and tc, of the package iproute2"),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, system: str, user: int, tools: bool, words: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr("shutil.which", lambda name: name if tools else None)
    assert words in str(missing())


def test_a_limit_that_cannot_be_taken_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def shows(command: tuple[str, ...], *, may_fail: bool = False) -> str:
        assert may_fail == ("del" in command)
        return "qdisc tbf 1: root rate 1Gbit\n" if "show" in command else ""

    monkeypatch.setattr(lab, "carry_out", shows)
    with pytest.raises(BenchError, match="the limit is still there: qdisc tbf"):
        shape(LAYOUT, Link())


def test_one_namespace_that_stays_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []

    def removed(name: str) -> None:
        if name.endswith("h0"):
            raise BenchError(f"{name} is busy")
        gone.append(name)

    monkeypatch.setattr(lab, "remove", removed)
    with pytest.raises(BenchError, match="bench-417-h0 is busy"):
        remove_all(LAYOUT.names)
    assert gone == ["bench-417-switch", "bench-417-h1"]


def test_a_maker_at_work_is_known_although_the_clock_was_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = Layout(maker=os.getpid(), hosts=2).switch
    (tmp_path / name).touch()
    os.utime(tmp_path / name, (0, 0))  # long before this process began
    monkeypatch.setattr(lab, "NAMESPACES", tmp_path)
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: ["python", "-m", "bench", "lab"])
    assert abandoned() == []
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: ["sleep", "600"])
    assert abandoned() == [name]


def test_a_kernel_without_netem_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: tuple[str, ...], *, may_fail: bool = False) -> str:
        if "netem" in command and not may_fail:
            raise BenchError("Error: Specified qdisc kind is unknown.")
        return ""

    monkeypatch.setattr(lab, "carry_out", fails)
    shape(LAYOUT, Link(rate="1gbit"))
    with pytest.raises(BenchError, match=r"cannot hold packets back.*leave latency_ms out"):
        shape(LAYOUT, Link(rate="1gbit", latency_ms=1.0))


@needs_lab
def test_a_real_network_is_as_fast_as_asked_and_is_removed() -> None:
    outside = interfaces()
    layout = Layout(maker=os.getpid(), hosts=2)
    with lab.network(layout):
        assert set(layout.names) <= set(existing())
        assert not set(layout.names) & set(abandoned()), "its maker is at work"
        shape(layout, Link(rate="100mbit"))
        slow = measure(layout, Link(rate="100mbit"))
        limit = bytes_per_s("100mbit")
        assert 0.5 * limit < slow.one_way_bytes_per_s < 1.1 * limit
        assert slow.both_ways_bytes_per_s < 1.1 * limit, "each direction has a limit of its own"
        shape(layout, Link())
        fast = measure(layout, Link(rate="100mbit"))  # as few bytes, with no limit
        assert fast.one_way_bytes_per_s > 2 * limit
        assert interfaces() == outside
    assert not set(layout.names) & set(existing())
    assert interfaces() == outside


@needs_lab
def test_what_was_left_behind_is_found_by_its_name_with_all_that_runs_there() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    layout = Layout(maker=gone.pid, hosts=2)
    name = layout.host(0)
    carry_out(("ip", "netns", "add", name))
    try:
        inside = subprocess.Popen(
            ["sleep", "600"],
            preexec_fn=lambda: enter(name),  # noqa: PLW1509 - it does nothing but one call
        )
        assert name in abandoned()
    finally:
        remove(name)
    assert inside.wait(10) != 0
    assert name not in existing()


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


@needs_lab
def test_a_thread_enters_a_namespace_alone() -> None:
    layout = Layout(maker=os.getpid(), hosts=2)
    with lab.network(layout):
        inside = made_in(layout.host(1), interfaces)
        assert inside == {"lo", "eth0"}
        assert interfaces() != inside
        with pytest.raises(OSError, match="bench-0-h0"):
            made_in("bench-0-h0", interfaces)
