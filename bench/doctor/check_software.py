"""Checks of what was installed: whether torch, torchvision, CUDA, NCCL and the compiler agree."""

from __future__ import annotations

from bench.doctor.facts import Facts, Software
from bench.doctor.finding import Check, Verdict, bad, ok, unknown, warning
from bench.measure.compiler import problem_of

INSTALL = "https://pytorch.org/get-started/locally"
NOT_ASKED = "torch was not asked"


def torch_itself(facts: Facts) -> Verdict:
    """Whether torch can be imported and look for devices."""
    one = facts.software
    if one is None:
        return unknown(NOT_ASKED)
    if one.failure is not None:
        return bad(
            f"torch {one.torch or 'is not installed'}: {one.failure}",
            f"pip install --force-reinstall torch torchvision, as {INSTALL} says for this machine",
        )
    built = f", built for {_build(one)}"
    if one.warnings:
        return warning(f"torch {one.torch}{built}, says: {'; '.join(one.warnings)}", _by(one))
    return ok(f"torch {one.torch}{built}")


def _by(one: Software) -> str:
    driver = "update the driver, or " if one.cuda_build else ""
    return f"{driver}install the build of torch that fits the devices: {INSTALL}"


def _build(one: Software) -> str:
    if one.cuda_build:
        return f"CUDA {one.cuda_build}"
    return f"ROCm {one.hip_build}" if one.hip_build else "CPUs"


def torchvision(facts: Facts) -> Verdict:
    """Whether torchvision was built for this torch."""
    one = facts.software
    if one is None or (one.failure is not None and one.torchvision_failure is None):
        return unknown(NOT_ASKED)
    needs = f", which needs torch {one.torchvision_needs}" if one.torchvision_needs else ""
    has = f"torchvision {one.torchvision}{needs}" if one.torchvision else "no torchvision"
    pair = f"{has}, beside torch {one.torch}"
    if one.torchvision_failure is None:
        return ok(pair)
    return bad(
        f"{pair}: {one.torchvision_failure}",
        f"install the two together, from one index: pip install torch torchvision ({INSTALL})",
    )


def driver(facts: Facts) -> Verdict | None:
    """Whether the driver is new enough for torch's CUDA, and torch sees what is there.

    A driver runs programs of its own major version of CUDA and of older ones: NVIDIA's "CUDA
    Compatibility", minor version compatibility.
    """
    one, there = facts.software, facts.devices
    if one is None or there is None:
        return unknown(NOT_ASKED)
    count = there.hinted if there.visible is None else len(there.visible)
    if count == 0:
        return None
    if not one.cuda_build:
        return bad(
            f"{count} of NVIDIA's devices, and a torch built for {_build(one)}",
            f"install a CUDA build of torch: {INSTALL}",
        )
    newest = there.driver_cuda or one.driver_cuda
    named = f"driver {there.driver or 'of unknown version'}"
    if newest is None:
        return unknown(f"{named}, whose CUDA is not told", "pip install '.[gpu]'")
    speaks = f"{newest // 1000}.{newest % 1000 // 10}"
    pair = f"{named} up to CUDA {speaks}, torch built for {one.cuda_build}"
    if newest // 1000 < int(one.cuda_build.split(".")[0]):
        return bad(pair, f"update the driver, or install a torch for CUDA {speaks}: {INSTALL}")
    seen = len(one.machine.devices) if one.machine is not None else 0
    if one.machine is not None and seen == 0:
        return bad(
            f"{pair}; {count} devices here, and torch sees none",
            "see what nvidia-smi says; in a container, start it with --gpus all",
        )
    return ok(pair)


def nccl(facts: Facts) -> Verdict | None:
    """Whether the NCCL that is loaded is the one that torch was built with."""
    one = facts.software
    if one is None or one.nccl_build is None:
        return None
    if one.nccl_loaded is None:
        return ok(f"NCCL {one.nccl_build}, built into torch")
    if one.nccl_loaded == one.nccl_build:
        return ok(f"NCCL {one.nccl_loaded}")
    return warning(
        f"NCCL {one.nccl_loaded} is loaded, torch was built with {one.nccl_build}",
        "take the other library out of LD_LIBRARY_PATH or LD_PRELOAD, or install torch again",
    )


def compiler(facts: Facts) -> Verdict:
    """Whether torch.compile can build what it writes for a CPU."""
    one = facts.compiler
    if one is None:
        return unknown("no compiler was looked for")
    asked = f"{one.asked_by}={one.command}" if one.asked_by else one.command
    problem = problem_of(one)
    return warning(*problem) if problem is not None else ok(f"{asked} compiles")


CHECKS = (
    Check(
        name="torch",
        spoils="launch",
        why="every rank imports it first, and looks for its device with it",
        examine=torch_itself,
    ),
    Check(
        name="torchvision",
        spoils="launch",
        why="ResNet-152 comes from it; built for another torch, its operators are missing",
        examine=torchvision,
    ),
    Check(
        name="driver",
        spoils="launch",
        why="with a driver older than torch's CUDA, devices are not used at all",
        examine=driver,
    ),
    Check(
        name="NCCL",
        spoils="launch",
        why="another version than torch was built with may fail, and is not what others measure",
        examine=nccl,
    ),
    Check(
        name="compiler",
        spoils="launch",
        why="torch.compile writes C++ for a CPU, and calls a compiler in its first step",
        examine=compiler,
    ),
)
