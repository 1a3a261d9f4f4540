"""Text as a file of token ids, mapped into memory: nothing is read before a sample needs it."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from workloads.base import Batch, Facts, Tokens, shard_seed
from workloads.data.base import BATCHES, Asked, Found, Opened, SampledOptions, Source
from workloads.data.files import written_once

LOOKED_AT = 1 << 20
"""Ids at either end of a user's file that are looked at before anything starts."""
LEAST_WRITTEN = 1_000_000
FILE = "tokens.bin"


class TokensOptions(SampledOptions, frozen=True, kw_only=True):
    """Settings of ``tokens``."""

    path: str | None = None
    """A file of token ids, one behind the other, without a header; null has a small one written,
    of random ids, for as long as the run takes. Helps to measure one's own data and the disk that
    they lie on; a file just written is read from memory. Costs next to nothing."""
    dtype: Literal["uint16", "uint32", "int32", "int64"] = "uint16"
    """Type of an id in the file, in the byte order of this machine. Helps to read files with more
    than 65,536 different tokens. Costs bytes."""
    tokens: Annotated[int, msgspec.Meta(ge=2)] | None = None
    """How many are written; null is a million, or an epoch of the made-up samples' length where
    that is more. Helps to see what the end of an epoch costs. Costs their bytes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None and self.tokens is not None:
            raise ValueError("tokens are written where there is no path; give one of the two")


class Rows:
    """See ``workloads.base.Samples``: rows of a file, none of which overlaps another.

    Args:
        file: of token ids.
        dtype: of an id in it.
        length: of a row.
    """

    def __init__(self, file: Path, dtype: str, length: int) -> None:
        self._file = file
        self._dtype = dtype
        self._length = length
        self._ids: NDArray[Any] | None = None

    def __len__(self) -> int:
        return rows_of(self._file.stat().st_size // np.dtype(self._dtype).itemsize, self._length)

    def __getstate__(self) -> dict[str, Any]:
        """Without the map: a process that gets a copy makes one of its own."""
        return {**self.__dict__, "_ids": None}

    def __getitem__(self, index: int) -> Batch:
        """tokens_L, and the same one token further on."""
        if self._ids is None:
            self._ids = np.memmap(self._file, dtype=self._dtype, mode="r")
        begin = index * self._length
        row = self._ids[begin : begin + self._length + 1].astype(np.int64)
        tokens = torch.from_numpy(row)
        return Batch((tokens[:-1],), tokens[1:])


def rows_of(tokens: int, length: int) -> int:
    """Rows of a length in a file; the last token of each is the first of the next.

    >>> rows_of(21, 10), rows_of(20, 10)  # the last row needs one token more, for its target
    (2, 1)
    """
    return max(0, tokens - 1) // length


def write_tokens(folder: Path, *, tokens: int, vocabulary: int, dtype: str, seed: int) -> None:
    """A file of random ids; the same for the same seed."""
    generator = np.random.default_rng(shard_seed(seed, 0))
    generator.integers(vocabulary, size=tokens, dtype=dtype).tofile(folder / FILE)


def check(facts: Facts, options: TokensOptions) -> str | None:
    """Whether the workload trains on tokens, and the type has room for them."""
    if not isinstance(facts.samples, Tokens):
        return (
            "the workload does not train on rows of token ids with the same row, one token further "
            "on, as targets; use host"
        )
    if options.path is None and facts.samples.vocabulary - 1 > np.iinfo(options.dtype).max:
        return (
            f"{options.dtype} has no room for {facts.samples.vocabulary:,} different tokens; set "
            "dtype: uint32"
        )
    return None


def count(facts: Facts, options: TokensOptions, at_once: int) -> int:
    """Rows in the file that is written."""
    assert isinstance(facts.samples, Tokens), "has been checked"
    return rows_of(_written(facts.samples, options, at_once), facts.samples.length)


def _written(samples: Tokens, options: TokensOptions, at_once: int) -> int:
    return options.tokens or max(LEAST_WRITTEN, BATCHES * at_once * samples.length + 1)


def look(facts: Facts, options: TokensOptions, path: Path) -> Found:
    """What a user's file holds.

    Raises:
        OSError: there is no such file.
        ValueError: its size is no whole number of ids.
    """
    samples = facts.samples
    assert isinstance(samples, Tokens), "has been checked"
    size, width = path.stat().st_size, np.dtype(options.dtype).itemsize
    if size == 0 or size % width:
        raise ValueError(f"{size:,} bytes are no whole number of ids of type {options.dtype}")
    digest, largest = _looked_at(path, options.dtype)
    problem = None
    if largest >= samples.vocabulary:
        problem = (
            f"{path} has the token {largest:,}, the workload's vocabulary has "
            f"{samples.vocabulary:,}; is {options.dtype} the type of its ids?"
        )
    return Found(count=rows_of(size // width, samples.length), digest=digest, problem=problem)


@functools.cache
def _looked_at(path: Path, dtype: str) -> tuple[str, int]:
    """(digest of size and both ends, largest id there)."""
    ids = np.memmap(path, dtype=dtype, mode="r")
    ends = [ids[:LOOKED_AT], ids[-LOOKED_AT:]]
    digest = hashlib.blake2b(str(ids.nbytes).encode(), digest_size=8)
    for end in ends:
        digest.update(end.tobytes())
    return digest.hexdigest(), max(int(end.max()) for end in ends)


def open_tokens(options: TokensOptions, asked: Asked) -> Opened:
    """The user's file, or one that is written now, if no other process has."""
    samples = asked.facts.samples
    assert isinstance(samples, Tokens), "the plan skips all others"
    file = asked.place
    if file is None:
        tokens = _written(samples, options, asked.at_once)
        name = f"tokens-{tokens}-{samples.vocabulary}-{options.dtype}-{asked.seed}"
        file = written_once(
            asked.scratch / name,
            functools.partial(
                write_tokens,
                tokens=tokens,
                vocabulary=samples.vocabulary,
                dtype=options.dtype,
                seed=asked.seed,
            ),
        )
        file = file / FILE
    rows = Rows(file, options.dtype, samples.length)
    return Opened(samples=rows, count=len(rows))


SOURCES = (
    Source(
        name="tokens",
        summary="rows of a file of token ids that is mapped into memory, through a DataLoader",
        options=TokensOptions,
        check=check,
        look=look,
        count=count,
        open=open_tokens,
    ),
)
