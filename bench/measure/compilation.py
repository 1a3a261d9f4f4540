"""What ``torch.compile`` does in a process: how often it compiles, how long, with what gaps.

torch calls back when it begins and ends to compile, whatever makes it do so: the first step, the
first backward, a guard that no longer holds, the capture of a CUDA graph. What came of it stands in
counters of its own. Names of both differ between versions, and are looked for one by one.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping

import msgspec

from bench.errors import one_line

REASONS = 5
"""Kept of a process: the most frequent."""
REASON_CHARACTERS = 200
SUMMARY = re.compile(r"\s*(Explanation|Hint|Developer debug context):.*", re.DOTALL)
"""What follows the first sentence of a reason."""
OVER_LIMIT = re.compile(r"(recompile|cache)[ _](size[ _])?limit", re.IGNORECASE)
"""In the reason for which a function gets no further version."""
VERSION = re.compile(r"\d+/(\d+)")
"""Of a compiled function: its number, and which of its versions, the first being 0."""


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has compiled so far."""

    graphs: int
    """That torch found in the model, recompiled ones included."""
    parts: int
    """That were compiled one by one: DDP's buckets cut a graph into several."""
    operations: int
    """Calls in all graphs together."""
    uncompiled: int
    """Functions that torch tried to compile, and runs as they are: those of a wrapper, too."""
    over_limit: int
    """Functions that torch has compiled in as many versions as it may: further ones run as they
    are."""
    breaks: int
    """Places at which a graph had to end before the function did."""
    reasons: dict[str, int]
    """Of breaks and of functions left as they are, with their number; the most frequent."""
    recompiles: int
    """Versions of functions beyond the first, before the window."""
    in_window: int
    """Times that something was compiled within the window."""
    compile_s: float
    """Before the window."""
    cache_hits: int
    """Graphs, forward and backward each, that an earlier process had compiled already."""
    cache_misses: int
    cudagraph_skips: int
    """Graphs that were to be captured as a CUDA graph, and were not."""
    autotuned: int
    """Operations whose kernel was chosen by timing several."""
    ddp_mode: str | None = None
    """What torch does about DDP's buckets in a compiled model."""


class CompileWatch:
    """Watches all compiling of this process from now on.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.count = 0
        """Times that torch began to compile."""
        self.spent_s = 0.0
        self.recompiles = 0
        self.within_ddp = False
        """Whether a DDP wrapper is part of what is compiled, or around it."""
        self._clock = clock
        self._since_s = 0.0
        self._before_window: tuple[int, int, float] | None = None
        self._register()

    def _register(self) -> None:
        from torch._dynamo import callback  # noqa: PLC0415 - only where something is compiled

        callback.on_compile_start(self._begin)
        callback.on_compile_end(self._end)

    def forget(self) -> None:
        """Have torch forget what it has compiled, but not its counters: for another model."""
        import torch._dynamo  # noqa: PLC0415 - as above

        torch._dynamo.reset()  # which forgets who is to be called back, too
        self._register()

    def _begin(self, arguments: object = None) -> None:
        self.count += 1
        self.recompiles += _is_recompilation(arguments)
        self._since_s = self._clock()

    def _end(self, _: object = None) -> None:
        self.spent_s += self._clock() - self._since_s

    def begin_window(self) -> None:
        """From now on nothing should be compiled any more."""
        self._before_window = (self.count, self.recompiles, self.spent_s)

    def read(self) -> Compiled:
        """What was compiled so far."""
        from torch._dynamo.utils import counters  # noqa: PLC0415 - as above

        now = (self.count, self.recompiles, self.spent_s)
        count, recompiles, spent_s = self._before_window or now
        frames, aot = _group(counters, "frames"), _group(counters, "aot_autograd")
        inductor = _group(counters, "inductor")
        breaks, left = _group(counters, "graph_break"), _group(counters, "unimplemented")
        return Compiled(
            graphs=_group(counters, "stats").get("unique_graphs", 0),
            parts=aot.get("total", 0),
            operations=_group(counters, "stats").get("calls_captured", 0),
            uncompiled=max(0, frames.get("total", 0) - frames.get("ok", 0)),
            over_limit=sum(count for why, count in left.items() if OVER_LIMIT.search(str(why))),
            breaks=sum(breaks.values()),
            reasons=most_frequent([breaks, left]),
            recompiles=recompiles,
            in_window=self.count - count,
            compile_s=spent_s,
            cache_hits=inductor.get("fxgraph_cache_hit", 0),
            cache_misses=inductor.get("fxgraph_cache_miss", 0)
            + inductor.get("fxgraph_cache_bypass", 0),
            cudagraph_skips=inductor.get("cudagraph_skips", 0),
            autotuned=inductor.get("select_algorithm_autotune", 0),
            ddp_mode=_ddp_mode() if self.within_ddp else None,
        )


def _group(counters: Mapping[str, Mapping[str, int]], name: str) -> Mapping[str, int]:
    """One group of torch's counters; reading one that is not there must not make it."""
    return counters.get(name, {})


def _is_recompilation(arguments: object) -> bool:
    """Whether torch begins with a further version of a function: its backward is part of it."""
    trigger = str(getattr(arguments, "callback_trigger", "DYNAMO"))
    version = VERSION.search(str(getattr(arguments, "compile_id", "")))
    return trigger.endswith("DYNAMO") and version is not None and int(version[1]) > 0


def most_frequent(groups: list[Mapping[str, int]]) -> dict[str, int]:
    r"""Reasons with their numbers, shortened to what tells them apart.

    >>> most_frequent([{"Unsupported call\n  Explanation: long\n": 2}, {"Unsupported call": 1}])
    {'Unsupported call': 3}
    """
    total: dict[str, int] = {}
    for reason, count in (pair for group in groups for pair in group.items()):
        text = short_reason(str(reason))
        total[text] = total.get(text, 0) + count
    ordered = sorted(total.items(), key=lambda pair: -pair[1])
    return dict(ordered[:REASONS])


def short_reason(text: str) -> str:
    """The first sentence of what torch says."""
    return one_line(SUMMARY.sub("", text), limit=REASON_CHARACTERS)


def _ddp_mode() -> str | None:
    from torch._dynamo import utils  # noqa: PLC0415 - as above

    ask = getattr(utils, "get_optimize_ddp_mode", None)
    return str(ask()) if ask is not None else None


def bound_compiler(cores: int) -> None:
    """Have the compiler use no more processes than there are cores for this one.

    To be called before anything is compiled. torch's own number is of all cores that the process
    which first imported it could use.
    """
    import torch._inductor.config as inductor  # noqa: PLC0415 - as above

    inductor.compile_threads = min(inductor.compile_threads or cores, cores)


def end_compiler() -> None:
    """End the compiler's own processes, if it has any: they would disturb a window."""
    module = sys.modules.get("torch._inductor.async_compile")
    shut_down = getattr(module, "shutdown_compile_workers", None)
    if shut_down is not None:
        shut_down()


def own_cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
