"""Training states as files: written until the disk has them, and read again.

Whole ones by ``torch.save``, sharded ones by ``torch.distributed.checkpoint``, whose files hold
the names and shapes of all tensors, so that any number of ranks can read them.
"""
# ruff: noqa: PLC0415 - most launches save nothing, and need not import what does

from __future__ import annotations

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.errors import in_words
from bench.measure.device import is_out_of_memory

WHOLE = "checkpoint.pt"
SHARD = re.compile(r"__(\d+)_")
"""How the name of a rank's file begins, as ``torch.distributed.checkpoint`` writes it."""

State = dict[str, Any]


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or not read."""


def write_whole(state: State, folder: Path) -> None:
    """Write a state in one file; returns when the disk has it."""
    path = folder / WHOLE
    with _in_words("written to", folder):
        with path.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(folder)


def write_sharded(state: State, folder: Path) -> None:
    """Write this rank's part; returns when the disk has all ranks' parts. Collective."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _in_words("written to", folder):
        save(state, storage_writer=FileSystemWriter(folder, sync_files=True))
        _sync_folder(folder)


def read_sharded(state: State, folder: Path) -> None:
    """Read this rank's part into the tensors of a state of the same names. Collective."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import load

    with _in_words("read from", folder):
        load(
            state,
            checkpoint_id=folder,
            # A parameter that no step uses has no state in the files.
            planner=DefaultLoadPlanner(allow_partial_load=True),
        )


def read_whole(folder: Path) -> State:
    """The whole state on the host, from either form; by one process alone.

    Tensors of a whole file are read from it as they are used.
    """
    with _in_words("read from", folder):
        path = folder / WHOLE
        if path.exists():
            state: State = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            return state
        return _gathered(folder)


def _gathered(folder: Path) -> State:
    """All shards put together, under the names that they were saved by."""
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    metadata = FileSystemReader(folder).read_metadata()
    flat: dict[str, Any] = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        if isinstance(one, TensorStorageMetadata)
        else None
        for name, one in metadata.state_dict_metadata.items()
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(flat, checkpoint_id=folder, no_dist=True)
    state: State = unflatten_state_dict(flat, metadata.planner_data)
    return state


def holds_optimizer(folder: Path) -> bool:
    """Whether sharded files have an optimizer's state in them."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    with _in_words("read from", folder):
        metadata = FileSystemReader(folder).read_metadata()
    return any(name.startswith("optimizer.state") for name in metadata.state_dict_metadata)


def bytes_by_rank(folder: Path, ranks: int) -> list[int]:
    """Bytes of the files that each rank has written; what names no rank is the first one's."""
    found = [0] * ranks
    for path in folder.iterdir():
        match = SHARD.match(path.name)
        found[int(match[1]) if match is not None else 0] += path.stat().st_size
    return found


def forget_cached(folder: Path) -> bool:
    """Ask the system to drop the files from its page cache, so that reading them means the disk.

    Returns:
        Whether it could be asked: Linux can. What lies beneath, a host's cache of a virtual disk,
        cannot be told.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return True


def require_space(folder: Path, needed: int, free: int) -> None:
    """Refuse to begin what cannot fit.

    Raises:
        CheckpointError: fewer bytes are free than tensors alone take.
    """
    if needed > free:
        raise CheckpointError(
            f"a checkpoint takes {needed / 2**20:,.0f} MiB and {folder} has {free / 2**20:,.0f} "
            "MiB free: free some, or name another folder with --checkpoint-dir"
        )


def _sync_folder(folder: Path) -> None:
    """Have the disk know the files' names too, where a system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _in_words(what: str, folder: Path) -> Iterator[None]:
    """What goes wrong with files, as an error that says so; torch's own is no ``Exception``."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        causes = [_cause(one) for one in _failures(error).values()]
        why = _said_by_system(causes) or "; ".join(dict.fromkeys(causes))
        raise CheckpointError(f"a checkpoint could not be {what} {folder}: {why}") from error
    except (OSError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        why = _cause(error)
        raise CheckpointError(f"a checkpoint could not be {what} {folder}: {why}") from error


def _failures(error: Any) -> Mapping[int, Any]:
    failures: Mapping[int, Any] = error.failures
    return failures


def _said_by_system(causes: Sequence[str]) -> str | None:
    """What the system says of a file, where any rank was told: others' words are of the same."""
    known = (os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES))
    return next((word for word in known if any(word in cause for cause in causes)), None)


def _cause(error: Any) -> str:
    """The system's own word where there is one: torch says only that its writer has failed."""
    if isinstance(error, tuple):  # torch's wrapping of another rank's exception
        error = error[0]
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return in_words(error)
