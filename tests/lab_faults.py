"""Whole runs in the laboratory, and what becomes of them when something breaks. Takes minutes.

Not collected with the other tests: ``nox -s lab``. Needs root, ``ip`` and ``tc``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.lab.network import existing, missing

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=f"no laboratory here: {missing()}"),
    pytest.mark.timeout(900),
]
PATIENCE_S = 400.0
SUITE = """
name: faults
defaults: {launches: 2, window: {min_steps: 3, max_s: 1}}
matrix:
  - workloads: [transformer:tiny]
    strategies: [single, %s]
    world_sizes: [2]
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return written(tmp_path, "ddp")


def written(folder: Path, strategy: str) -> Path:
    path = folder / "faults.yaml"
    path.write_text(SUITE % strategy)
    return path


@contextlib.contextmanager
def bench(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The program as people start it; it is gone in the end, and so is what it has made."""
    command = [sys.executable, "-m", "bench", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
    assert process.pid not in existing().values()


def until(is_so: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    until_s = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < until_s, "it does not come about"
        time.sleep(0.1)


def rows(folder: Path) -> list[dict[str, Any]]:
    try:
        text = (folder / "records.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def host_processes(lab: int, host: str) -> list[psutil.Process]:
    """Of one host of a laboratory: the agent itself, its fork server, and all ranks."""
    place = ("--node-rank", host.removeprefix("h"))
    agents = [
        one for one in psutil.Process(lab).children() if place in itertools.pairwise(one.cmdline())
    ]
    assert agents, "or what follows would be of nothing"
    return [*agents, *(child for one in agents for child in one.children(recursive=True))]


def timed(folder: Path) -> int:
    return sum(one["pass"] == "timing" for one in rows(folder))


def test_a_host_that_is_killed_costs_its_rows_and_no_others(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with bench("lab", "run", suite, "--out", out) as lab:
        until(lambda: timed(out) or lab.poll() is not None)
        (agent, *_) = host_processes(lab.pid, "h1")
        everything = host_processes(lab.pid, "h1")
        agent.kill()
        _, error = lab.communicate(timeout=PATIENCE_S)
        assert lab.returncode == 1, error
        until(lambda: not any(one.is_running() for one in everything), 20)
    found = rows(out)
    lost = [one for one in found if one["status"] != "ok"]
    assert lost, "the host was killed before the run's end"
    assert {one["case"]["strategy"] for one in lost} == {"ddp"}
    for one in lost:
        assert one["status"] == "failed"
        assert "host 1 (h1) left the run" in one["reason"]
        assert one["fault"]["host"] == "h1"
    assert sum(one["pass"] == "timing" for one in found) == 4, "every planned launch is a row"


def test_a_link_that_is_cut_ends_in_words(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with bench("lab", "run", suite, "--out", out) as lab:
        until(lambda: timed(out) or lab.poll() is not None)
        switch = f"bench-{lab.pid}-switch"
        subprocess.run(["ip", "-n", switch, "link", "set", "h1", "down"], check=True)
        _, error = lab.communicate(timeout=PATIENCE_S)
        assert lab.returncode == 1, error
    lost = [one for one in rows(out) if one["status"] != "ok"]
    assert lost
    assert all("host 1 (h1) left the run" in one["reason"] for one in lost)
    assert "it has not answered for 20 s" in lost[0]["reason"]


def test_a_fault_on_one_host_is_one_row(tmp_path: Path) -> None:
    suite, out = written(tmp_path, "ddp, tests.fakes:RAISE"), tmp_path / "out"
    with bench("lab", "run", suite, "--out", out, "--launches", 1) as lab:
        _, error = lab.communicate(timeout=PATIENCE_S)
        assert lab.returncode == 1, error
    found = rows(out)
    lost = [one for one in found if one["status"] != "ok"]
    assert {one["case"]["strategy"] for one in lost} == {"tests.fakes:RAISE"}
    assert {one["pass"] for one in lost} >= {"timing"}
    for one in lost:
        assert "rank 1 of 2 on h1" in one["reason"]
        assert one["fault"]["exception"] == "ValueError"


def test_an_interrupt_leaves_what_was_measured_and_nothing_else(
    suite: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with bench("lab", "run", suite, "--out", out) as lab:
        until(lambda: rows(out) or lab.poll() is not None)
        everything = [*host_processes(lab.pid, "h0"), *host_processes(lab.pid, "h1")]
        lab.send_signal(signal.SIGINT)
        _, error = lab.communicate(timeout=PATIENCE_S)
        assert lab.returncode == 130, error
        until(lambda: not any(one.is_running() for one in everything), 5)
    assert any(one["status"] == "interrupted" for one in rows(out))
    with bench("lab", "run", suite, "--out", out, "--resume") as lab:
        _, error = lab.communicate(timeout=PATIENCE_S)
        assert lab.returncode == 0, error
    assert sum(one["pass"] == "timing" and one["status"] == "ok" for one in rows(out)) == 4


def test_what_a_killed_laboratory_has_left_is_found_by_name(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "bench", "lab", "run", str(suite), "--out", str(out)]
    lab = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: rows(out) or lab.poll() is not None)
        everything = [*host_processes(lab.pid, "h0"), *host_processes(lab.pid, "h1")]
        assert any(maker == lab.pid for maker in existing().values())
    finally:
        lab.kill()
        lab.wait()
    until(lambda: not any(one.is_running() for one in everything), 20)
    left = {name for name, maker in existing().items() if maker == lab.pid}
    assert left, "nobody could tidy up"
    with bench("lab", "clean") as clean:
        said, _ = clean.communicate(timeout=60)
    assert left <= set(said.split())
    assert not left & set(existing())


def test_every_strategy_is_proved_across_hosts(tmp_path: Path) -> None:
    """What ``smoke`` shows of one host it shows of two."""
    out = tmp_path / "out"
    with bench("lab", "run", "smoke", "--out", out, "--link", "1gbit", "--launches", 1) as lab:
        _, error = lab.communicate(timeout=850)
        assert lab.returncode == 0, error
    across = [one for one in rows(out) if one["case"]["nodes"] == 2]
    proved = [one for one in across if one["pass"] == "parity"]
    assert len({one["case"]["strategy"] for one in proved}) > 1
    assert all(one["parity"]["verdict"] in {"exact", "within_precision"} for one in proved)
    measured = [one for one in across if one["pass"] == "timing" and one["status"] == "ok"]
    assert all(one["hosts"] == ["h0", "h1"] for one in measured)
    assert all("emulated_network" in one["flags"] for one in measured)


def test_a_port_that_is_taken(suite: Path, tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        place = ("--nnodes", 2, "--node-rank", 0, "--rdzv-endpoint", f"127.0.0.1:{port}")
        with bench("run", suite, *place, "--out", tmp_path / "out") as run:
            _, error = run.communicate(timeout=PATIENCE_S)
            assert run.returncode == 2
    assert f"port {port} of --rdzv-endpoint cannot be listened at" in error.splitlines()[-1]


def test_a_host_that_never_comes(suite: Path, tmp_path: Path) -> None:
    place = ("--nnodes", 2, "--rdzv-endpoint", "127.0.0.1:29517", "--rdzv-conf", "join_timeout=3")
    with bench("run", suite, *place, "--node-rank", 0, "--out", tmp_path / "out") as run:
        _, error = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 2
    assert error.splitlines()[-1] == ("bench: 1 of 2 hosts came within 3 s; missing: node 1")
    with bench("run", suite, *place, "--node-rank", 1) as run:
        _, error = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 2
    assert "no answer from node 0 at 127.0.0.1:29517 within 3 s" in error.splitlines()[-1]


def test_hosts_that_differ(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours, theirs = written(tmp_path, "ddp"), written(tmp_path / "other", "fsdp")
    place = ("--nnodes", 2, "--rdzv-endpoint", "127.0.0.1:29518")
    with (
        bench("run", ours, *place, "--node-rank", 0, "--out", tmp_path / "out") as first,
        bench("run", theirs, *place, "--node-rank", 1) as second,
    ):
        for run in (first, second):
            _, error = run.communicate(timeout=PATIENCE_S)
            assert run.returncode == 2
            assert "the hosts differ: the suite" in error.splitlines()[-1]
