from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from bench.errors import OutputError
from bench.run.checkpoint_folder import Checkpoints


def test_nothing_stays(tmp_path: Path) -> None:
    with Checkpoints(folder=tmp_path / "all").folder_of("one") as folder:
        (folder / "file").write_text("")
    assert not list(tmp_path.iterdir())


def test_what_is_kept_stays_and_only_that(tmp_path: Path) -> None:
    kept = Checkpoints(folder=tmp_path, kept=True)
    with kept.folder_of("one") as folder:
        (folder / "file").write_text("")
    with contextlib.suppress(ValueError), kept.folder_of("two") as folder:
        (folder / "file").write_text("")
        raise ValueError("stopped")
    assert [path.name for path in tmp_path.rglob("*")] == ["one", "file"]


def test_what_an_earlier_run_left_is_gone(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "old").write_text("")
    with Checkpoints(folder=tmp_path).folder_of("one") as folder:
        assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match="file/one: cannot be made: Not a directory"),
        Checkpoints(folder=tmp_path / "file").folder_of("one"),
    ):
        pass
