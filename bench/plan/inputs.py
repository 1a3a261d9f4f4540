"""Where a case's batches come from, and why they cannot, or must not, come from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import plural
from bench.plan.case import Case, Machine
from bench.plan.own import codes_of
from bench.strategies.base import Strategy
from workloads.base import Facts
from workloads.data.base import Found, LoaderOptions, Source, resolved
from workloads.data.feed import Share, epoch_of, too_few

MAX_WORKERS_PER_CORE = 8
"""More processes than this on one core only fill the memory."""


class Input(msgspec.Struct, frozen=True, eq=False):
    """A data source with one choice of its options."""

    source: Source
    options: Any
    label: str
    """See ``Case.data_label``."""
    place: Path | None = None
    """Of the user's own data."""
    found: Found | None = None
    """What is there."""

    @property
    def settings(self) -> dict[str, Any]:
        """See ``Case.data_options``."""
        found: dict[str, Any] = msgspec.structs.asdict(self.options)
        return found

    @property
    def digests(self) -> dict[str, str]:
        """Of the user's own data, by their path."""
        return {} if self.found is None else {str(self.options.path): self.found.digest}

    def looked_at(self, facts: Facts) -> Input:
        """The same with what is at the user's path, as far as there is one that the workload takes.

        Raises:
            OSError: there is nothing of the kind.
            ValueError: likewise.
        """
        if self.place is None or self.source.look is None:
            return self
        if self.source.check(facts, self.options) is not None:
            return self
        found = self.source.look(facts, self.options, self.place)
        return msgspec.structs.replace(self, found=found)


def as_it_works(options: Any) -> Any:
    """Options with the plain value of whatever means nothing."""
    return resolved(options) if isinstance(options, LoaderOptions) else options


def changed_of(options: msgspec.Struct) -> dict[str, Any]:
    """Options that differ from their defaults."""
    return {
        field.name: value
        for field in msgspec.structs.fields(options)
        if (value := getattr(options, field.name)) != field.default
    }


def share_of(case: Case, strategy: Strategy, rank: int = 0) -> Share:
    """The part of the samples that one process loads: all of them, where it drives all devices."""
    if strategy.processes == "one":
        return Share(rank=0, ranks=1, batch=case.per_device_batch * case.world_size)
    return Share(rank=rank, ranks=case.world_size, batch=case.per_device_batch)


def problem_of_input(
    case: Case,
    strategy: Strategy,
    facts: Facts,
    given: Input,
    machine: Machine,
) -> str | None:
    """Why a case cannot have its batches from there, or why another case shows the same.

    Args:
        case: of the source.
        strategy: of the case.
        facts: of the workload.
        given: source and options, looked at.
        machine: that the case would run on.
    """
    options, source, found = given.options, given.source, given.found
    if not isinstance(options, LoaderOptions):
        return None
    reason = source.check(facts, options) or (found.problem if found is not None else None)
    if reason is not None:
        return reason
    if case.device == "cpu" and (options.pin_memory or options.non_blocking):
        return (
            "pin_memory and non_blocking are about copies to an accelerator; on a CPU nothing is "
            "copied: the same as without"
        )
    if source.of_workload and options.multiprocessing_context != "fork" and _is_loose(case):
        return (
            f"workers that are not forked cannot import {case.workload}, which is in no package; "
            "use multiprocessing_context: fork"
        )
    share = share_of(case, strategy)
    count = found.count if found is not None else _made_up(source, facts, options, case)
    if epoch_of(source, options, count, share).trained == 0:
        return too_few(count, options, share)
    return _too_much(case, share, facts, options, machine)


def _is_loose(case: Case) -> bool:
    """Whether the workload is a file that only the ranks know how to import."""
    return any(code.is_loose for code in codes_of([case.workload]).values())


def _made_up(source: Source, facts: Facts, options: LoaderOptions, case: Case) -> int:
    assert source.count is not None, "a loader's source makes up samples where it has no path"
    return source.count(facts, options, case.per_device_batch * case.world_size)


def _too_much(
    case: Case, share: Share, facts: Facts, options: LoaderOptions, machine: Machine
) -> str | None:
    """Why workers would stand in each other's way, or fill the shared memory."""
    ranks = max(1, share.ranks // case.nodes)
    cores = _cores(case, machine)
    if options.workers * ranks > MAX_WORKERS_PER_CORE * cores:
        return (
            f"{plural(options.workers * ranks, 'worker')} would share {plural(cores, 'core')}, of "
            f"which each is good for {MAX_WORKERS_PER_CORE} at most; use fewer workers"
        )
    free = machine.shared_memory_bytes
    needed = ranks * shared_bytes(options, share.batch * (facts.sample_bytes or 0))
    if free is not None and needed > free:
        return (
            f"batches under way between workers and ranks take up to {needed / 2**20:,.0f} MiB of "
            f"shared memory, and /dev/shm has {free / 2**20:,.0f} MiB free; use fewer workers, a "
            "smaller prefetch_factor or batch, or enlarge it (docker run --shm-size)"
        )
    return None


def shared_bytes(options: LoaderOptions, batch_bytes: int) -> int:
    """Shared memory that the batches of one rank take at most.

    As many as torch keeps under way, which are ``prefetch_factor`` for each worker, and the one
    that is being trained on.

    >>> shared_bytes(LoaderOptions(workers=2, prefetch_factor=3), 100)
    700
    """
    if options.workers == 0:
        return 0
    return (options.workers * options.prefetch_factor + 1) * batch_bytes


def _cores(case: Case, machine: Machine) -> int:
    """That the ranks of a host, and with them their workers, may use."""
    if case.device == "cpu":
        here = case.world_size // case.nodes
        return min(len(machine.cores), here * (case.cores_per_device or 1))
    return len(machine.cores)


def flags_of_input(case: Case, strategy: Strategy, given: Input, machine: Machine) -> Iterator[str]:
    """What must be said of figures with such workers."""
    options = given.options
    if not isinstance(options, LoaderOptions) or options.workers == 0:
        return
    if case.device == "cpu":
        yield "workers_share_cores"
    ranks = max(1, share_of(case, strategy).ranks // case.nodes)
    if case.device != "cpu" and (options.workers + 1) * ranks > _cores(case, machine):
        yield "many_workers"
