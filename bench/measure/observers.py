"""What observes or slows a program on purpose, so that its times are not its own."""

from __future__ import annotations

import os
import re
import sys
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.measure.cores import read_text

SETTINGS = {
    "CUDA_LAUNCH_BLOCKING": r"[^0].*",
    "HIP_LAUNCH_BLOCKING": r"[^0].*",
    "AMD_SERIALIZE_KERNEL": r"[^0].*",
    "TORCH_DISTRIBUTED_DEBUG": r"(?i)detail",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": r"[^0].*",
    "NCCL_DEBUG": r"(?i)trace",
    "CUDA_INJECTION64_PATH": r".+",
    "NSYS_PROFILING_SESSION_ID": r".+",
    "LD_PRELOAD": r".*(lib(clang_rt\.)?(hwa|a|l|m|t|ub)san|vgpreload|libprofiler|heaptrack).*",
}
"""Variables, with the values that make each kernel wait for the last, check every collective, load
a profiler or a sanitizer."""
MONITORING_TOOLS = 6
"""Of Python 3.12 and later: ``sys.monitoring``'s tool numbers are 0 to 5."""


def observers(
    variables: Mapping[str, str] = os.environ, proc: Path = Path("/proc")
) -> tuple[str, ...]:
    """Names of what observes or slows this process now.

    Python's hooks count where they are set in the calling thread.
    """
    return (*_of_python(), *_of_torch(), *_of_the_system(variables, proc))


def _of_python() -> Iterator[str]:
    if sys.gettrace() is not None:
        yield "sys.settrace"
    if sys.getprofile() is not None:
        yield "sys.setprofile"
    if hasattr(sys, "monitoring"):
        named = map(sys.monitoring.get_tool, range(MONITORING_TOOLS))
        yield from (f"sys.monitoring ({name})" for name in named if name)
    if tracemalloc.is_tracing():
        yield "tracemalloc"
    if sys.flags.dev_mode:
        yield "Python's development mode"


def _of_torch() -> Iterator[str]:
    if "torch" not in sys.modules:
        return
    import torch  # noqa: PLC0415 - who has not imported it does without, and waits for nothing
    from torch._C._autograd import _profiler_enabled  # noqa: PLC0415

    if _profiler_enabled():
        yield "torch.profiler"
    if torch.is_anomaly_enabled():
        yield "autograd's anomaly mode"


def _of_the_system(variables: Mapping[str, str], proc: Path) -> Iterator[str]:
    for name, pattern in SETTINGS.items():
        if re.fullmatch(pattern, variables.get(name, ""), re.DOTALL):
            yield name
    tracer = re.search(r"^TracerPid:\s*(\d+)$", read_text(proc / "self/status"), re.MULTILINE)
    if tracer and int(tracer[1]):
        yield "ptrace"  # a debugger, or strace
