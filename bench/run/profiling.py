"""The profile of one device, measured in fresh processes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from bench.errors import BenchError
from bench.measure.device import core_sets, visible_devices
from bench.plan.case import Case, Effort, Machine
from bench.plan.matrix import expand
from bench.plan.suite import parse_suite
from bench.records.profile import Profile, read_profile
from bench.run import profile_rank
from bench.run.culprit import find_culprit
from bench.run.elastic import read_outcomes, run_elastic
from bench.run.launch import Launcher
from bench.run.loopback import loopback_variables
from bench.run.watch import Watch

LAUNCH_S = 1800.0


def base_case(
    workload: object, machine: Machine, *, settings: dict[str, object]
) -> tuple[Case, Effort]:
    """The case of one device without a wrapper.

    Args:
        workload: as suites name it, with its preset; a mapping where it has options.
        machine: to plan for.
        settings: of the case, as in a suite: ``per_device_batch``, ``precision`` ...

    Raises:
        BenchError: it cannot be, or not here.
    """
    document = {
        "name": "profile",
        "matrix": [
            {"workloads": [workload], "strategies": ["single"], "world_sizes": [1], **settings}
        ],
    }
    suite = parse_suite(yaml.safe_dump(document), source="bench predict profile")
    (planned,) = expand(suite, machine)
    if planned.skip_reason is not None:
        raise BenchError(f"{workload}: {planned.skip_reason}")
    return planned.case, planned.effort


def measure_profile(
    case: Case, effort: Effort, *, together: int, machine: Machine, scratch: Path
) -> Profile:
    """Measure a profile, in as many processes at the same time as shall compute together.

    Args:
        case: of ``base_case``.
        effort: of its warm-up.
        together: processes, each on a device of its own: what devices of one machine share slows
            all of them down, and with two or more it is measured what overlap costs.
        machine: that it is measured on.
        scratch: private folder.

    Raises:
        BenchError: there are fewer devices, or a process failed.
    """
    devices = machine.device_count(case.device, cores_per_device=case.cores_per_device or 1)
    if together > max(devices, 1):
        raise BenchError(f"--together {together}: this machine has {devices} {case.device} devices")
    launcher = Launcher(scratch, machine)
    placed = msgspec.structs.replace(case, world_size=together)
    with launcher.folder() as folder:
        cores = core_sets(machine, cores_per_device=case.cores_per_device, devices=together)
        assignment = profile_rank.ProfileAssignment(
            case=case,
            backend=machine.default_backends.get(case.device, "gloo"),
            effort=effort,
            folder=str(folder),
            cores=tuple(cores),
            environment=dict(visible_devices(placed, machine)) | loopback_variables(),
            launch_s=LAUNCH_S,
        )
        file = folder / "assignment.json"
        file.write_bytes(msgspec.json.encode(assignment))
        watch = Watch(together, effort.limits, LAUNCH_S, folder)
        ends = run_elastic(profile_rank.main, file, watch)
        outcomes = read_outcomes(folder, together, ends)
        culprit = find_culprit(outcomes)
        if culprit is not None and culprit.failure is not None:
            raise BenchError(
                f"the profile failed on process {culprit.rank}, in {culprit.phase}: "
                f"{culprit.failure.reason}"
            )
        return read_profile(folder / profile_rank.FILE)
