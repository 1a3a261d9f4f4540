"""The contract of a data source: where the batches of a timed step come from.

A source file defines frozen options and what it makes of them, and ends with
``SOURCES = (Source(...),)``. It imports torch and nothing of ``bench``. A source asks workloads for
facts, never for names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from workloads.base import Facts, Options, Samples

BATCHES = 256
"""Of each device, in an epoch of samples that are made up."""

OptionsT = TypeVar("OptionsT", bound="LoaderOptions")


class LoaderOptions(Options, frozen=True, kw_only=True):
    """Settings of every source that goes through ``torch.utils.data.DataLoader``."""

    workers: int = 0
    """Processes of each rank that load batches beside the training; with 0 the rank loads each one
    itself, between two steps. Helps where loading takes long and cores are free. Costs cores, which
    on a CPU are those that train, and a copy of each batch through shared memory."""
    prefetch_factor: int = 2
    """Batches that each worker has ready, or in the making; without workers, none is. Helps where
    some batches take far longer than others. Costs shared memory for each of them."""
    persistent_workers: bool = False
    """Keep the workers from one epoch to the next. Helps where an epoch is short, as starting them
    takes longer than many steps. Costs nothing but their memory."""
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] = "fork"
    """How workers are started. Helps, as forkserver, where a library that samples need does not
    live through a fork. Costs, other than fork, an import of torch for each worker, and samples
    that can be pickled."""
    pin_memory: bool = False
    """Copy each batch into page-locked memory, in a thread of its own. Helps copies to an
    accelerator, which then go at the full rate of the bus. Costs host memory that cannot be
    swapped."""
    non_blocking: bool = False
    """Do not wait for the copy to the device. Helps where batches are in page-locked memory, as the
    copy then goes on while the host prepares the step. Costs nothing; without pin_memory it does
    nothing either."""

    def __post_init__(self) -> None:
        self.require_positive("prefetch_factor")
        if self.workers < 0:
            raise ValueError("workers must be 0 or more")


OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
"""Options that mean nothing without workers."""


class SampledOptions(LoaderOptions, frozen=True, kw_only=True):
    """Those of a source whose samples have numbers: torch's ``DistributedSampler`` deals them."""

    shuffle: bool = True
    """Deal the samples in another order in each epoch. Helps to read files as training would.
    Costs the order of files on a disk, which reading in turn would go along."""
    drop_last: bool = False
    """Leave out samples that do not divide by the number of ranks; else some come a second time.
    Helps to train on no sample twice in an epoch. Costs the samples that are left out."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a source is opened for: one process of a launch."""

    facts: Facts
    """Of the workload."""
    own: Samples | None
    """The workload's own samples."""
    at_once: int
    """Samples that all devices together take in a micro-step."""
    seed: int
    place: Path | None
    """Where the path of the options is on this host; None where they have none."""
    scratch: Path
    """Folder of the run, for what a source writes itself; may not be there yet."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Samples with their number."""

    samples: Samples
    count: int


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is at a path of the user's, as a look at it tells before anything starts."""

    count: int
    """Of samples."""
    digest: str
    """Of what it holds, as far as that can be told quickly: results of other data are of another
    case."""
    problem: str | None = None
    """Why the workload cannot train on it."""


def no_problem(facts: Facts, options: Any) -> str | None:
    """For a source that goes with every workload."""
    del facts, options
    return None


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where batches come from: a suite names it in ``data``."""

    name: str
    summary: str
    options: type[Options]
    check: Callable[[Facts, Any], str | None] = no_problem
    """(facts of the workload, options) -> why they do not go together, or None."""
    look: Callable[[Facts, Any, Path], Found] | None = None
    """(facts, options, path) -> what is there. Raises ``OSError`` or ``ValueError`` where it is
    nothing of the kind. None for a source that reads no files of the user's; one that does has the
    option ``path``."""
    count: Callable[[Facts, Any, int], int] | None = None
    """(facts, options, samples that all devices take at once) -> how many an epoch has, where the
    source makes them up; None for one that does not."""
    open: Callable[[Any, Asked], Opened] | None = None
    """(options, what for) -> samples; None for batches that the workload makes itself."""
    of_workload: bool = False
    """Whether its samples are the workload's own."""
    is_stream: bool = False
    """Whether samples come in one order, which workers of all ranks split among themselves."""


def resolved(options: OptionsT) -> OptionsT:
    """The same options, with the plain value of whatever means nothing: equal code has one name."""
    if options.workers > 0:
        return options
    plain = type(options)()
    return msgspec.structs.replace(options, **{name: getattr(plain, name) for name in OF_WORKERS})


def needs_own(facts: Facts, options: Any) -> str | None:
    """For a source of the workload's own samples."""
    del options
    if facts.sample_bytes is None:
        return (
            "the workload gives no samples one by one; let its problem have samples, and its facts "
            "sample_bytes"
        )
    return None


def own_count(facts: Facts, options: Any, at_once: int) -> int:
    """Of the workload's own samples: all of its data set, or a number of batches."""
    asked: int | None = options.samples
    if facts.sample_count is not None:
        return min(facts.sample_count, asked or facts.sample_count)
    return asked or BATCHES * at_once


def open_own(options: Any, asked: Asked) -> Opened:
    """The workload's own samples."""
    assert asked.own is not None, "the plan skips workloads without any"
    return Opened(samples=asked.own, count=own_count(asked.facts, options, asked.at_once))
