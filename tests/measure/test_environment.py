from __future__ import annotations

import pytest

from bench.measure.environment import collect, fingerprint, versions
from tests.fakes import EIGHT_GPUS, TWO_CORES


def test_versions_name_what_computes() -> None:
    assert {"bench", "python", "torch", "torchvision", "numpy"} <= versions().keys()


def test_the_fingerprint_follows_what_changes_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint(collect(TWO_CORES))
    assert fingerprint(collect(TWO_CORES)) == first
    assert fingerprint(collect(EIGHT_GPUS)) != first
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert fingerprint(collect(TWO_CORES)) != first
    monkeypatch.delenv("NCCL_ALGO")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert fingerprint(collect(TWO_CORES)) == first
