from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.measure.machine import probe_in_child
from bench.run.launch import Launcher
from bench.run.server import start_server


@pytest.fixture(scope="session")
def _server() -> None:
    start_server()


@pytest.fixture
def launcher(_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """A launcher of real processes; none may be left when the test ends."""
    # Where processes fail, torch's launcher leaves files in the temporary folder.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield Launcher(tmp_path / "scratch", probe_in_child())
    assert not multiprocessing.active_children()
