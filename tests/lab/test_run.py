"""A whole run across two emulated hosts, the quick one of them: ``nox -s lab`` has more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.lab.network import existing, missing
from bench.records.store import read_records, read_run

SUITE = """
name: two hosts
defaults: {launches: 1, warmup_steps: 2, window: {min_steps: 3, max_s: 0.2}}
matrix:
  - workloads: [transformer:tiny]
    strategies: [ddp]
    world_sizes: [2]
    nodes: 2
    link: 200mbit
"""


@pytest.mark.skipif(missing() is not None, reason=f"no laboratory here: {missing()}")
def test_a_suite_runs_across_emulated_hosts(tmp_path: Path) -> None:
    suite, out = tmp_path / "two.yaml", tmp_path / "out"
    suite.write_text(SUITE)
    command = [sys.executable, "-m", "bench", "lab", "run", str(suite), "--out", str(out)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as laboratory:
        said, error = laboratory.communicate()
    assert laboratory.returncode == 0, error
    assert laboratory.pid not in existing().values(), "it removes what it has made"
    assert "2 on 2  ddp" in said
    records = read_records(out)
    assert {one.pass_ for one in records} == {"parity", "timing", "communication", "memory"}
    for one in records:
        assert (one.status, one.case.nodes, one.hosts) == ("ok", 2, ["h0", "h1"])
        assert "emulated_network" in one.flags
        assert one.placement is not None
        assert [place.host for place in one.placement] == ["h0", "h1"]
        if one.parity is not None:
            assert one.parity.verdict == "exact"
        if one.timing is not None:
            assert len(one.timing.step_s) == 2
            assert one.timing.launch_s is not None
            assert 0 < one.timing.launch_s < 60, "clocks of two hosts are put on one"
    network = read_run(out).environment["network"]
    (link,) = network["links"]
    assert link["link"]["rate"] == "200mbit"
    assert link["one_way_bytes_per_s"] < 1.1 * 25e6  # 200 Mbit/s
    assert "What that distorts" in (out / "report.md").read_text()
