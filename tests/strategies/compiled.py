"""Compiled models of all kinds, proved with torch's own compiler: ``nox -s compile``. Minutes.

What one proof compiles the next ones find, so that most of the time goes into the first of a kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.measure.machine import probe_in_child
from bench.run.launch import Launcher
from bench.run.server import start_server
from tests.strategies.test_contract import planned_case, proof

OPTIONS = ("static_graph", "gradient_as_bucket_view")
TRANSFORMER, EMBEDDING, RESNET = "transformer:tiny", "embedding:tiny", "resnet152:tiny"


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    start_server()
    return Launcher(tmp_path_factory.mktemp("scratch"), probe_in_child())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("workload", "strategy", "settings"),
    [
        *[
            (TRANSFORMER, strategy, {"compile_scope": scope, "precision": precision})
            for precision in ("fp32", "bf16-amp", "bf16")
            for strategy, scope in [
                ("ddp", "outside"),
                ("ddp", "inside"),
                ("ddp", "blocks"),
                ("fsdp", "outside"),
                ("fsdp", "blocks"),
            ]
        ],
        (TRANSFORMER, "ddp", {"static_graph": True}),
        (TRANSFORMER, "ddp", {"compile_scope": "inside", "static_graph": True}),
        (TRANSFORMER, "ddp", {"gradient_as_bucket_view": True}),
        (TRANSFORMER, "ddp", {"accumulation_steps": 2}),
        (TRANSFORMER, "fsdp", {"accumulation_steps": 2}),
        (TRANSFORMER, "ddp", {"activation_checkpointing": True}),
        (TRANSFORMER, "ddp", {"activation_checkpointing": True, "compile_scope": "blocks"}),
        (TRANSFORMER, "fsdp", {"activation_checkpointing": True, "compile_scope": "blocks"}),
        (EMBEDDING, "ddp", {}),
        (EMBEDDING, "ddp", {"compile": "max-autotune"}),
        (EMBEDDING, "fsdp", {}),
        (RESNET, "ddp", {"compile_scope": "blocks"}),
    ],
)
def test_a_compiled_model_is_the_same_model(
    launcher: Launcher,
    tmp_path: Path,
    workload: str,
    strategy: str,
    settings: dict[str, Any],
) -> None:
    """Settings of the suite and options of the strategy, in one."""
    asked = {"compile": "default"} | settings
    options = {name: asked.pop(name) for name in OPTIONS if name in asked}
    case = planned_case(workload, strategy, 2, **asked)
    case = msgspec.structs.replace(case, options=case.options | options)
    record = proof(launcher, case, tmp_path)
    assert record.status == "ok", record.reason
    assert record.parity is not None
    assert record.parity.verdict in {"exact", "within_precision"}, record.parity.reason
    assert record.compilation is not None
    assert record.compilation.graphs > 0
    assert "partly_compiled" not in record.flags


@pytest.mark.timeout(1800)
def test_sparse_gradients_of_a_compiled_model(launcher: Launcher, tmp_path: Path) -> None:
    case = planned_case(EMBEDDING, "ddp", 2, compile="default")
    case = msgspec.structs.replace(case, workload_options=case.workload_options | {"sparse": True})
    record = proof(launcher, case, tmp_path)
    assert record.parity is not None, record.reason
    assert record.parity.verdict == "exact", record.parity.reason
