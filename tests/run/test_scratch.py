from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bench.run.scratch import OWNER, remove_abandoned, scratch


def test_it_takes_all_temporary_files_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch() as folder:
        assert folder.parent == tmp_path
        assert Path(tempfile.mkdtemp()).parent == folder
    assert tempfile.gettempdir() == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_use_or_not_ours_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "bench-press").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / OWNER).touch()
    (tmp_path / "bench-abandoned").mkdir()
    (tmp_path / "bench-abandoned" / OWNER).touch()
    with scratch() as folder:
        script = (
            "import sys; from pathlib import Path; from bench.run.scratch import *; "
            "remove_abandoned(Path(sys.argv[1]))"
        )
        subprocess.run([sys.executable, "-c", script, tmp_path], check=True)
        remove_abandoned(tmp_path)
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"bench-press", "other", folder.name}
