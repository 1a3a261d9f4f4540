from __future__ import annotations

import multiprocessing
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
def launcher(_server: None, tmp_path: Path) -> Iterator[Launcher]:
    """A launcher of real processes; none may be left when the test ends."""
    yield Launcher(tmp_path / "scratch", probe_in_child())
    assert not multiprocessing.active_children()
