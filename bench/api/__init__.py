"""What Python code of the user's own calls: see ``bench``, which exports it."""

from __future__ import annotations

from bench.api.measure import check, compare
from bench.api.result import Comparison

__all__ = ["Comparison", "check", "compare"]
