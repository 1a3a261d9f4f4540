"""What is wrong with a strategy or workload of one's own, in words: ``bench check``."""

from __future__ import annotations

from bench.contract.check import check_file, check_references
from bench.contract.finding import Finding

__all__ = ["Finding", "check_file", "check_references"]
