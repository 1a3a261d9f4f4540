from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bench.comm import progress
from bench.comm.progress import Following
from bench.run.phases import Note, Notebook


def test_a_launch_that_lasts_says_what_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOOK_S", 0.01)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    said: list[str] = []
    came = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        came.set()

    notebook = Notebook(tmp_path, 0)
    with Following(tmp_path, say):
        for phase in ("all_reduce of 4 bytes of fp32", "all_reduce of 8 bytes of fp32"):
            notebook.write(Note(phase=phase, since_s=0.0))
            assert came.wait(30)
            came.clear()
    assert said == ["  at all_reduce of 4 bytes of fp32", "  at all_reduce of 8 bytes of fp32"]
    assert not [one for one in threading.enumerate() if one.name == "progress"]


def test_a_short_one_says_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    Notebook(tmp_path, 0).write(Note(phase="start", since_s=0.0))
    with Following(tmp_path, said.append):
        pass
    assert said == []
