"""Saving a session's training state into a folder, and going on from there: all ranks together."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.measure import checkpoint_files as files
from bench.run.rank import Rank
from bench.strategies.base import SavedSession, Session


class CannotBeSavedError(TypeError):
    """A session lacks the methods of ``SavedSession``."""


def write(
    rank: Rank, session: SavedSession, folder: Path, *, sharded: bool, with_optimizer: bool
) -> None:
    """Write a training state; the disk then has what this rank writes of it. Collective.

    Args:
        rank: of this process.
        session: of this rank.
        folder: that is there.
        sharded: a file for each rank, and not one of rank 0 with all of it.
        with_optimizer: whether the optimizer has any state, on any rank.
    """
    state = session.take_state(whole=not sharded, with_optimizer=with_optimizer)
    if sharded:
        files.write_sharded(state, folder)
    elif rank.rank == 0:
        files.write_whole(state, folder)


def restore(session: SavedSession, folder: Path, *, sharded: bool) -> None:
    """Have all ranks go on from what stands in a folder. Collective.

    Args:
        session: of this rank.
        folder: that was saved to.
        sharded: read only what this rank holds.
    """
    if sharded:
        state = session.take_state(whole=False, with_optimizer=files.holds_optimizer(folder))
        files.read_sharded(state, folder)
        session.put_state(state, whole=False)
    else:
        session.put_state(files.read_whole(folder), whole=True)


def as_saved(session: Session) -> SavedSession:
    """The session, under the contract of what can be saved.

    Raises:
        CannotBeSavedError: it is not under that.
    """
    if not isinstance(session, SavedSession):
        raise CannotBeSavedError(
            f"a {type(session).__name__} cannot be saved: give it the methods of "
            "bench.strategies.base.SavedSession, or give its strategy a saving whose form is none"
        )
    return session


def remove(rank: Rank, folder: Path) -> None:
    """Of all ranks, when all of them are done with it."""
    rank.slowest(0.0)
    if rank.rank == 0:
        shutil.rmtree(folder)
    rank.slowest(0.0)
