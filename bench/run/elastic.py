"""The processes of one launch: started by torch's elastic launcher, watched, and heard."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import api
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from bench.errors import BenchError
from bench.run import logs, server, signals, stacks
from bench.run.ends import SERVER_DIED, Ends, explained
from bench.run.handles import require_handles
from bench.run.handover import Node, RankOutcome
from bench.run.phases import START, read_note
from bench.run.process import outcome_file
from bench.run.signals import GIVE_UP, GaveUpError
from bench.run.watch import Watch

MEET_S = 60
"""For the agents of all hosts to meet, once each has said that it is ready."""
SHUTDOWN_S = 2
"""For ranks to end by themselves when the launch is over."""
EXIT_S = 10.0
"""For the agents of the other hosts once this host's ranks have ended well, in place of torch's
300. Nothing is lost where it does not suffice: the store that they meet in is node 0's own, and
outlives its agent. A host that died meanwhile would hold all others up for as long, out of reach of
signals."""


def run_elastic(
    entry: Callable[[str], None],
    file: Path,
    watch: Watch,
    *,
    node: Node | None = None,
    variables: Mapping[str, str] = server.NONE,
    meanwhile: AbstractContextManager[object] | None = None,
) -> Ends:
    """Start the ranks, which read their assignment from the file, and wait for their end.

    Args:
        entry: what each process calls, with the file's name.
        file: in the launch's folder, where logs go too.
        watch: of as many processes as there shall be on this host.
        node: place of this host, where others launch their share of the same ranks.
        variables: of the fork server's environment.
        meanwhile: is entered while they run.

    Raises:
        Interruption: a signal arrived; all processes are gone.
        BenchError: the fork server was killed.
        OSError: the processes could not be started.
    """
    processes = watch.expected
    require_handles(processes)
    config = LaunchConfig(
        **_meeting(node),
        nproc_per_node=processes,
        run_id=file.parent.name,
        max_restarts=0,
        monitor_interval=0.1,
        start_method=server.START_METHOD,
        logs_specs=DefaultLogsSpecs(log_dir=str(file.parent / "logs"), redirects=Std.ALL),
    )
    if hasattr(config, "shutdown_timeout"):  # torch 2.12 and later; 30 s before
        config.shutdown_timeout = SHUTDOWN_S
    # torch would bind ranks to NUMA nodes only where they are as many as there are devices, so that
    # 8 ranks ran bound and 4 unbound, and would start the driver before ranks have their variables.
    config.numa_options = None
    if hasattr(config, "signals_to_handle"):  # torch 2.10 and later
        # A second signal would break the launcher's shutdown: ours come but once.
        config.signals_to_handle = GIVE_UP.name
    server.start_server(variables)
    forker = server.server_pid()
    try:
        with (
            server.spawning(variables),
            _quiet_launcher(),
            brief_exit(),
            signals.handlers_kept(),
            _expected_ends(watch, forker),
            watch,
            meanwhile or contextlib.nullcontext(),
        ):
            elastic_launch(config, entry)(str(file))
    finally:
        server.kill_left_behind()
    return watch.ends(server_died=server.has_ended(forker))


def _meeting(node: Node | None) -> dict[str, Any]:
    """Where the agents of a launch meet: torchrun's c10d on one host, its static on several.

    The latter numbers hosts as it is told, and not by their addresses. All of them are known to be
    there when it begins.
    """
    if node is not None:
        return {
            "min_nodes": node.nodes,
            "max_nodes": node.nodes,
            "rdzv_backend": "static",
            "rdzv_endpoint": f"{node.address}:{node.port}",
            "rdzv_configs": {"rank": node.rank, "timeout": MEET_S},
        }
    return {
        "min_nodes": 1,
        "max_nodes": 1,
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "127.0.0.1:0",  # port 0: the system picks a free one
        "rdzv_configs": {"is_host": True},  # else it would look for one elsewhere when that fails
        "local_addr": "127.0.0.1",
    }


def read_outcomes(
    folder: Path, processes: int, ends: Ends, first_rank: int = 0
) -> tuple[RankOutcome, ...]:
    """What each rank of a launch that has ended handed over, or what its end says of it.

    Args:
        folder: of the launch on this host.
        processes: on this host.
        ends: of these.
        first_rank: of these.
    """
    found = tuple(_outcome(folder, local, ends, first_rank) for local in range(processes))
    return _with_faults_of_teardown(found, ends)


@contextlib.contextmanager
def _expected_ends(watch: Watch, forker: int | None) -> Iterator[None]:
    """Let pass how a launch may end, and say in our words what ended it from outside."""
    try:
        yield
    except ChildFailedError:
        pass  # names one rank of possibly several; the watch has seen them all
    except (EOFError, ConnectionError) as error:
        if not server.has_ended(forker):
            raise
        raise BenchError(SERVER_DIED) from error
    except GaveUpError:
        pass  # the watch has ended the launcher's waiting, and knows why
    except SignalException as error:
        if not watch.gave_up:  # else the watch itself has ended the launcher's waiting
            raise signals.stopped_by(error.sigval) from error


@contextlib.contextmanager
def brief_exit() -> Iterator[None]:
    """Have torch's agents wait ``EXIT_S`` for each other in the end: it has no setting for it."""
    starter: Any = api
    before = starter.LocalElasticAgent
    starter.LocalElasticAgent = functools.partial(before, exit_barrier_timeout=EXIT_S)
    try:
        yield
    finally:
        starter.LocalElasticAgent = before


@contextlib.contextmanager
def _quiet_launcher() -> Iterator[None]:
    """The agent reports on failed ranks in its own words; the record does so in ours."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # the launcher's loggers each set a level of their own
    try:
        yield
    finally:
        logging.disable(before)


def _with_faults_of_teardown(
    outcomes: tuple[RankOutcome, ...], ends: Ends
) -> tuple[RankOutcome, ...]:
    """A rank that was killed after it had handed over has failed where that took others along."""
    if all(outcome.failure is None for outcome in outcomes):
        return outcomes
    return tuple(
        msgspec.structs.replace(one, failure=ends.failure(local))
        if one.failure is None and ends.was_killed(local)
        else one
        for local, one in enumerate(outcomes)
    )


def _outcome(folder: Path, local: int, ends: Ends, first_rank: int) -> RankOutcome:
    """What a rank handed over, or what its end says.

    A process that fails after handing over its result has not lost it.
    """
    try:
        content = outcome_file(folder, local).read_bytes()
        outcome = msgspec.json.decode(content, type=RankOutcome)
    except FileNotFoundError:
        note = read_note(folder, local)
        outcome = RankOutcome(
            rank=first_rank + local,
            phase=note.phase if note is not None else START,
            step=note.step if note is not None else None,
            failure=ends.failure(local),
        )
    text = logs.read_tail(folder, local)
    return msgspec.structs.replace(
        outcome,
        failure=outcome.failure and explained(outcome.failure, text),
        exit_code=ends.code(local) or None,
        stack=stacks.main_stack(text),
        log_tail=logs.tail_lines(text),
    )
