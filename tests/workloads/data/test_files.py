"""Pictures and tokens from files: written, and read for what they are."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from workloads.base import Facts, Images, Tokens
from workloads.data import folder, tokens
from workloads.data.base import Asked
from workloads.data.files import written_once
from workloads.data.folder import FolderOptions, write_pictures
from workloads.data.tokens import FILE, Rows, TokensOptions

PICTURES = Facts(unit="image", samples=Images(size=16, classes=3))
TEXT = Facts(unit="token", samples=Tokens(length=4, vocabulary=50))


def asked(facts: Facts, scratch: Path, place: Path | None = None) -> Asked:
    return Asked(facts=facts, own=None, at_once=2, seed=0, place=place, scratch=scratch)


def test_pictures_are_written_once_and_read_as_training_reads_them(tmp_path: Path) -> None:
    options = FolderOptions(images=7)
    opened = folder.open_folder(options, asked(PICTURES, tmp_path))
    assert opened.count == 7
    batch = opened.samples[0]
    assert batch.inputs[0].shape == (3, 16, 16)
    assert batch.inputs[0].dtype is torch.float32
    files = sorted(tmp_path.rglob("*.jpg"))
    assert len(files) == 7
    assert {one.parent.name for one in files} == {"class000", "class001", "class002"}
    sizes = [one.stat().st_size for one in files]
    assert all(50_000 < size < 200_000 for size in sizes), "as ImageNet's"
    times = [one.stat().st_mtime_ns for one in files]
    folder.open_folder(options, asked(PICTURES, tmp_path))
    assert [one.stat().st_mtime_ns for one in files] == times
    assert not torch.equal(batch.inputs[0], opened.samples[0].inputs[0]), "another crop each time"


def test_a_users_folder_is_looked_at(tmp_path: Path) -> None:
    write_pictures(tmp_path, images=4, classes=2, seed=0)
    found = folder.look(PICTURES, FolderOptions(path="."), tmp_path)
    assert (found.count, found.problem) == (4, None)
    few = Facts(unit="image", samples=Images(size=16, classes=1))
    problem = folder.look(few, FolderOptions(path="."), tmp_path).problem
    assert problem is not None
    assert "has 2 classes, the workload has 1 outputs; raise its num_classes" in problem
    opened = folder.open_folder(FolderOptions(path="."), asked(PICTURES, tmp_path, tmp_path))
    assert opened.count == 4
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        folder.look(PICTURES, FolderOptions(path="empty"), empty)


def test_a_folder_that_was_left_unfinished_is_written_anew(tmp_path: Path) -> None:
    wanted = tmp_path / "data" / "set"
    with pytest.raises(RuntimeError):
        written_once(wanted, stop_half_way)
    assert not wanted.exists()
    assert written_once(wanted, lambda path: (path / "whole").touch()) == wanted
    assert [one.name for one in wanted.iterdir()] == ["whole"]


def stop_half_way(folder: Path) -> None:
    (folder / "half").touch()
    raise RuntimeError("stopped half way")


def test_rows_of_a_token_file_do_not_overlap_and_end_one_token_further_on(tmp_path: Path) -> None:
    np.arange(14, dtype=np.uint16).tofile(tmp_path / "ids")
    rows = Rows(tmp_path / "ids", "uint16", 4)
    assert len(rows) == 3
    found = [(rows[n].inputs[0].tolist(), rows[n].targets.tolist()) for n in range(3)]
    assert found[0] == ([0, 1, 2, 3], [1, 2, 3, 4])
    assert found[2] == ([8, 9, 10, 11], [9, 10, 11, 12])
    again = copy.deepcopy(rows)  # by the protocol that brings it to a worker
    assert again[2].targets.tolist() == [9, 10, 11, 12]


def test_tokens_are_written_where_there_is_no_path(tmp_path: Path) -> None:
    opened = tokens.open_tokens(TokensOptions(tokens=101), asked(TEXT, tmp_path))
    assert opened.count == 25
    assert tokens.count(TEXT, TokensOptions(tokens=101), 2) == 25
    (file,) = tmp_path.rglob(FILE)
    assert np.fromfile(file, dtype=np.uint16).max() < 50


def test_a_users_token_file_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    np.array([1, 2, 3, 49, 5], dtype=np.uint16).tofile(file)
    found = tokens.look(TEXT, TokensOptions(path="ids"), file)
    assert (found.count, found.problem) == (1, None)
    wide = tmp_path / "wide"
    np.array([1, 2, 3, 50, 5], dtype=np.uint32).tofile(wide)
    problem = tokens.look(TEXT, TokensOptions(path="wide", dtype="uint32"), wide).problem
    assert problem is not None
    assert "has the token 50, the workload's vocabulary has 50; is uint32 the type" in problem
    assert found.digest != tokens.look(TEXT, TokensOptions(path="w", dtype="uint32"), wide).digest
    with pytest.raises(ValueError, match="10 bytes are no whole number of ids of type int64"):
        tokens.look(TEXT, TokensOptions(path="ids", dtype="int64"), file)


def test_what_is_written_has_room_for_the_vocabulary() -> None:
    many = Facts(unit="token", samples=Tokens(length=4, vocabulary=70_000))
    assert tokens.check(many, TokensOptions(dtype="uint32")) is None
    reason = tokens.check(many, TokensOptions())
    assert reason == "uint16 has no room for 70,000 different tokens; set dtype: uint32"


def test_a_path_leaves_nothing_to_write() -> None:
    with pytest.raises(ValueError, match="images are written where there is no path"):
        FolderOptions(path="x", images=5)
    with pytest.raises(ValueError, match="tokens are written where there is no path"):
        TokensOptions(path="x", tokens=5)
    with pytest.raises(ValueError, match="workers must be 0 or more"):
        TokensOptions(workers=-1)
