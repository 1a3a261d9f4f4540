"""Compare ways of training one model in parallel, and say how far each figure can be trusted.

From Python: ``compare`` measures a model of one's own, ``check`` tries a workload or strategy, and
``workload`` says more of a function that makes one. They are loaded when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.api import Comparison, check, compare
    from workloads.own import workload

__version__ = "0.1.0"
__all__ = ["Comparison", "check", "compare", "workload"]


def __getattr__(name: str) -> Any:
    """What needs PyTorch is imported once it is asked for: every rank imports this module."""
    if name == "workload":
        import workloads.own  # noqa: PLC0415 - see above

        return workloads.own.workload
    if name in __all__:
        import bench.api  # noqa: PLC0415 - see above

        return getattr(bench.api, name)
    raise AttributeError(f"module 'bench' has no attribute {name!r}")
