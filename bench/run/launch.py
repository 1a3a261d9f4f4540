"""Start the processes of one launch through torch's elastic launcher, and collect what they say."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from bench.errors import BenchError
from bench.measure.conditions import Window, conditions_of
from bench.measure.device import core_sets, visible_devices
from bench.measure.machine import probe
from bench.measure.nvml import used_before
from bench.measure.sampler import Sampler
from bench.plan.case import Case, Effort, Machine
from bench.plan.own import codes_of
from bench.plan.places import place_of
from bench.records.record import Conditions
from bench.run import server, worker
from bench.run.elastic import read_outcomes, run_elastic
from bench.run.ends import SERVER_DIED
from bench.run.handover import Assignment, CaseShare, Job, RankOutcome, TraceWish
from bench.run.hosts import Hosts
from bench.run.loopback import loopback_variables, outward_variables
from bench.run.phases import launch_limit_s
from bench.run.retries import Launched, launch_with_retries
from bench.run.segments import remove_segments
from bench.run.watch import Watch


def probe_in_server() -> Machine:
    """The machine, as a child of the fork server finds it: no second import of torch.

    Raises:
        BenchError: the child failed.
    """
    context = multiprocessing.get_context(server.START_METHOD)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_machine, args=(sender,))  # type: ignore[attr-defined]
    child.start()
    sender.close()
    try:
        return msgspec.json.decode(receiver.recv_bytes(), type=Machine)
    except EOFError as error:
        raise BenchError("torch cannot look at this machine's devices; see above") from error
    finally:
        receiver.close()
        child.join()


def _send_machine(sender: Connection) -> None:
    server.follow_server()
    sender.send_bytes(msgspec.json.encode(probe()))


class Launcher:
    """Launches on this host, and on the others of its run.

    Args:
        scratch: private folder for references, outcomes and logs, which the caller removes.
        machine: whose cores and devices ranks are given.
        hosts: that take part in the run; None for this one alone.
    """

    def __init__(self, scratch: Path, machine: Machine, hosts: Hosts | None = None) -> None:
        self.scratch = scratch
        self.machine = machine
        self.hosts = hosts
        self._count = 0
        self._told_of_sampler = False

    def renew(self, variables: Mapping[str, str] = server.NONE) -> None:
        """Have the processes to come forked by a new server.

        So the launches of a case that are made with different servers are as independent as
        executing Python anew would make them.

        Args:
            variables: of the server's environment, and so of the processes.

        Raises:
            BenchError: the new server does not answer.
        """
        if self.hosts is not None:
            self.hosts.renew(variables)
        server.renew_server(variables)
        context = multiprocessing.get_context(server.START_METHOD)
        child = context.Process(target=server.follow_server)  # type: ignore[attr-defined]
        try:
            child.start()  # waits until the server has imported everything
        except (EOFError, ConnectionError) as error:
            raise BenchError(SERVER_DIED) from error
        child.join()
        if child.exitcode != 0:
            raise BenchError("the fork server that starts all processes does not start; see above")

    def launch_case(  # noqa: PLR0913 - what a launch is told, each known by its name
        self,
        case: Case,
        effort: Effort,
        job: Job,
        *,
        launch: int,
        processes: int,
        reference: Path | None = None,
        trace: TraceWish | None = None,
        checkpoint: Path | None = None,
    ) -> Launched:
        """Run one job of one case in fresh processes; returns one outcome for each.

        Args:
            case: what to run.
            effort: how long.
            job: which pass.
            launch: which repeat.
            processes: how many ranks each host starts.
            reference: file of the parity reference.
            trace: what a profile is to leave.
            checkpoint: folder to save to, on this host.

        Raises:
            Interruption: a signal arrived; all processes of the launch are gone.
            BenchError: the fork server was killed.
            OSError: the processes could not be started.
        """
        if not server.serves(case.env):
            self.renew(case.env)

        def launch_once(retries: tuple[str, ...]) -> Launched:
            self._count += 1
            share = CaseShare(
                number=self._count,
                nodes=case.nodes,
                processes=processes,
                meets=job != "reference",  # each host makes its own
                ready_s=effort.limits.start_s,
                limit_s=launch_limit_s(case, effort),
                link=case.link,
                latency_ms=case.latency_ms,
                job=job,
                case=case,
                effort=effort,
                launch=launch,
                trace=trace,
                retries=retries,
            )
            if self.hosts is None or case.nodes == 1:
                return self.launch_share(share, reference, checkpoint=checkpoint)
            return self._launch_on_all(self.hosts, share, reference)

        return launch_with_retries(launch_once)

    def _launch_on_all(self, hosts: Hosts, share: CaseShare, reference: Path | None) -> Launched:
        made = [self._assignment(share, Path(), reference)]  # of a launch that does not begin

        def run(own: CaseShare, elsewhere: Callable[[], bool]) -> tuple[RankOutcome, ...]:
            assignment, outcomes = self.launch_share(own, reference, elsewhere)
            made.append(assignment)
            return outcomes

        outcomes = hosts.launch(share, run)
        return made[-1], outcomes

    def launch_share(
        self,
        share: CaseShare,
        reference: Path | None = None,
        elsewhere: Callable[[], bool] = lambda: False,
        *,
        checkpoint: Path | None = None,
    ) -> Launched:
        """Launch what is this host's of a launch, once.

        Args:
            share: of this host.
            reference: file of the parity reference, on this host.
            elsewhere: whether processes of other hosts have ended.
            checkpoint: folder to save to.
        """
        case, effort = share.case, share.effort
        with self.folder(share.number) as folder:
            assignment = msgspec.structs.replace(
                self._assignment(share, folder, reference),
                checkpoint=None if checkpoint is None else str(checkpoint),
            )
            file = folder / "assignment.json"
            file.write_bytes(msgspec.json.encode(assignment))
            watch = Watch(share.processes, effort.limits, share.limit_s, folder, elsewhere)
            sampler = self._sampler(assignment, watch) if share.job == "timing" else None
            ends = run_elastic(
                worker.main,
                file,
                watch,
                node=share.node,
                variables=case.env,
                meanwhile=sampler,
            )
            first, *others = read_outcomes(folder, share.processes, ends, share.first_rank)
            if sampler is not None:
                conditions = _conditions(sampler, case, (first, *others))
                first = msgspec.structs.replace(first, conditions=conditions)
                if sampler.fault is not None and not self._told_of_sampler:
                    self._told_of_sampler = True
                    warnings.warn(f"conditions are not watched: {sampler.fault}", stacklevel=2)
            return assignment, (first, *others)

    def _assignment(self, share: CaseShare, folder: Path, reference: Path | None) -> Assignment:
        """What the ranks of this host are told."""
        case = share.case
        cores = tuple(
            core_sets(
                self.machine,
                cores_per_device=case.cores_per_device,
                devices=case.world_size // case.nodes,
            )
        )
        return Assignment(
            job=share.job,
            case=case,
            effort=share.effort,
            launch=share.launch,
            folder=str(folder),
            started_s=time.monotonic(),
            cores=cores,
            environment=self._environment(share, folder) | case.env,
            watched=_watched(case, cores),
            codes=codes_of((case.workload, case.strategy)),
            data_place=place_of(case.data_options.get("path")),
            data_folder=str(self.scratch / "data"),
            used_before=used_before(case, self.machine),
            reference=str(reference) if reference is not None else None,
            trace=share.trace,
            retries=share.retries,
        )

    @contextlib.contextmanager
    def folder(self, number: int | None = None) -> Iterator[Path]:
        """A new one for a launch, until that is over.

        Args:
            number: of the launch, in its run; None for the next.
        """
        if number is None:
            self._count += 1
        folder = self.scratch / f"launch{number or self._count}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            remove_segments(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def _sampler(self, assignment: Assignment, watch: Watch) -> Sampler:
        """What looks at the cores and devices of a launch while it runs."""
        case = assignment.case
        here = case.world_size // case.nodes
        devices = self.machine.devices[:here] if case.device == "cuda" else ()
        return Sampler(
            cores=assignment.watched,
            devices=[device.visible_as for device in devices],
            pids=watch.pids,
        )

    def _environment(self, share: CaseShare, folder: Path) -> dict[str, str]:
        case = share.case
        environment = dict(visible_devices(case, self.machine))
        # NCCL's flight recorder writes a pickle when a collective fails: here, not in ~/.cache.
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
            environment[name] = str(folder / "flight-recorder-")
        if case.compile != "none":
            # What one launch compiles the next ones find; and nothing stays behind. The headers
            # that torch compiles beforehand go to the temporary folder, whatever it is told.
            environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.scratch / "compiled")
            environment["TMPDIR"] = str(self.scratch)
        node = share.node
        return environment | (
            loopback_variables() if node is None else outward_variables(node.interface)
        )


def _watched(case: Case, cores: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Cores that the ranks may compute on: with accelerators, they move near them by themselves."""
    if case.device != "cpu" and hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(sorted({core for share in cores for core in share}))


def _conditions(
    sampler: Sampler, case: Case, outcomes: tuple[RankOutcome, ...]
) -> Conditions | None:
    """The conditions on this host while its ranks timed their steps; None where one did not."""
    found = [outcome.measured for outcome in outcomes if outcome.measured is not None]
    begins = [one.began_s for one in found if one.began_s is not None]
    ends = [one.ended_s for one in found if one.ended_s is not None]
    cpu_s = [one.cpu_s for one in found if one.cpu_s is not None]
    if not (len(begins) == len(ends) == len(outcomes)):
        return None
    window = Window(
        began_s=min(begins),
        ended_s=max(ends),
        samples=case.global_batch * len(found[0].step_s) // case.nodes,  # of this host's devices
        cpu_s=sum(cpu_s) if len(cpu_s) == len(outcomes) else None,
        cores_use=found[0].cores_use,
    )
    return conditions_of(sampler.series(), window)
