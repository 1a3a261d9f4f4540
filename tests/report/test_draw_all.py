from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bench.report.draw_all import Wanted, attempt_all
from bench.report.drawing import charts_in, new_figure

SCRIPT = """
import os, sys
from pathlib import Path
from tests.report import test_draw_all as here

parent, new_figure = os.getpid(), here.new_figure
os.sched_getaffinity = lambda _: {0, 1}

def seen(*size):
    if os.getpid() != parent:
        Path(sys.argv[1], "forked").touch()
        if sys.argv[2] == "killed":
            os.kill(os.getpid(), 9)
    return new_figure(*size)

here.new_figure = seen
here.draw_some(Path(sys.argv[1]))
"""


def draw_one(height: float) -> object:
    if height == 2:
        raise ValueError("too high")
    figure, axes = new_figure(3, 2)
    axes.plot([0, height])
    return figure


def draw_some(folder: Path) -> None:
    wanted = [
        Wanted(partial(draw_one, height), folder / f"chart{height}", "a line")
        for height in range(6)
    ]
    with charts_in(folder, ["chart*"]) as drawn:
        drawn += [chart for chart in attempt_all(wanted) if chart is not None]


@pytest.mark.parametrize("fate", ["well", "killed"])
def test_processes_draw_what_one_alone_would(tmp_path: Path, fate: str) -> None:
    many, alone = tmp_path / "many", tmp_path / "alone"
    command = [sys.executable, "-c", SCRIPT, str(many), fate]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (many / "forked").exists()
    (many / "forked").unlink()
    assert done.stderr.count("a line: this chart could not be drawn: ValueError: too high") == 1
    assert ("drawn one after the other" in done.stderr) == (fate == "killed")
    with pytest.warns(UserWarning, match="too high"):
        draw_some(alone)
    files = sorted(one.name for one in alone.iterdir())
    assert len(files) == 2 * 5
    assert files == sorted(one.name for one in many.iterdir())
    for name in files:
        assert (many / name).read_bytes() == (alone / name).read_bytes()
