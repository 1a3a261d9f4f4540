from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.measure.checkpoint_files import (
    WHOLE,
    CheckpointError,
    bytes_by_rank,
    forget_cached,
    read_whole,
    require_space,
    write_whole,
)

STATE: dict[str, Any] = {
    "model": {"weight": torch.arange(6.0).view(2, 3)},
    "optimizer": {
        "state": {"weight": {"step": torch.tensor(3.0)}},
        "param_groups": [{"lr": 0.1, "params": ["weight"]}],
    },
}


def test_a_whole_state_comes_back(tmp_path: Path) -> None:
    write_whole(STATE, tmp_path)
    forget_cached(tmp_path)
    found = read_whole(tmp_path)
    assert torch.equal(found["model"]["weight"], STATE["model"]["weight"])
    assert found["optimizer"]["param_groups"] == STATE["optimizer"]["param_groups"]


def test_it_is_on_the_disk_when_saving_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(STATE, tmp_path)
    assert synced == [str(tmp_path / WHOLE), str(tmp_path)]


def test_files_belong_to_the_rank_in_their_name(tmp_path: Path) -> None:
    for name, size in {"__0_0.distcp": 10, "__1_0.distcp": 20, ".metadata": 5}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    assert bytes_by_rank(tmp_path, 2) == [15, 20]  # what names no rank is the first one's


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_what_a_disk_refuses_is_said_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        try:
            raise OSError(number, os.strerror(number))
        except OSError:
            raise RuntimeError("PytorchStreamWriter failed writing file")  # noqa: B904 - as torch

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(CheckpointError, match=f"written to .*: {os.strerror(number)}$"):
        write_whole(STATE, tmp_path)


def test_memory_that_does_not_suffice_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(torch.OutOfMemoryError):
        write_whole(STATE, tmp_path)


def test_what_cannot_fit_is_not_begun(tmp_path: Path) -> None:
    require_space(tmp_path, needed=2**20, free=2**20)
    with pytest.raises(CheckpointError, match=r"takes 3 MiB and .* has 1 MiB free: free some"):
        require_space(tmp_path, needed=3 * 2**20, free=2**20)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="could not be read from"):
        read_whole(tmp_path)
