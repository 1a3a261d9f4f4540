"""Programs are made of text alone, compile for every setting, and really train."""

from __future__ import annotations

import ast
import multiprocessing
import os
import runpy
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from bench.plan.case import Case
from bench.plan.registry import all_strategies
from bench.report.snippet.pieces import NoProgramError
from bench.report.snippet.program import command, program
from bench.report.snippet.wrappers import DEFAULTS, WRAPPERS
from bench.run.launch import Launcher
from bench.strategies import ddp
from bench.strategies.base import Context
from bench.strategies.ddp_check import accepts
from bench.strategies.ddp_options import DDPOptions
from bench.strategies.deepspeed import DeepSpeedOptions, engine_config
from tests.fakes import make_case
from tests.strategies.variants import VARIANTS

LOSSY = {"comm_hook", "local_sgd_period"}
OTHERS: dict[str, list[dict[str, Any]]] = {"single": [{}], "dp": [{}], "deepspeed": [{}]}
EVERY = [
    (strategy, options) for strategy, found in {**VARIANTS, **OTHERS}.items() for options in found
]


def case_of(strategy: str, options: dict[str, Any] | None = None, **changes: Any) -> Case:
    fields: dict[str, Any] = {"device": "cuda", "backend": "nccl", "world_size": 4}
    return make_case(**fields | changes, strategy=strategy, options=options or {})


def test_every_strategy_and_setting_is_known_with_its_default() -> None:
    strategies = all_strategies()
    assert WRAPPERS.keys() == DEFAULTS.keys() == strategies.keys()
    for name, strategy in strategies.items():
        options = {one.name: one.default for one in msgspec.structs.fields(strategy.options)}
        assert DEFAULTS[name] == options, name


@pytest.mark.parametrize(("strategy", "options"), EVERY)
def test_each_setting_makes_a_program_of_its_own(strategy: str, options: dict[str, Any]) -> None:
    if LOSSY & options.keys():
        is_own = options.get("comm_hook") == "hierarchical"
        with pytest.raises(NoProgramError, match="level by level" if is_own else "other gradients"):
            program(case_of(strategy, options))
        return
    text = program(case_of(strategy, options))
    ast.parse(text)
    assert max(map(len, text.splitlines())) <= 120
    assert (text == program(case_of(strategy))) == (not options)


def test_what_torch_itself_cannot_run_has_no_program() -> None:
    fused: dict[str, Any] = {"precision": "fp16-amp", "optimizer_kernels": "fused"}
    with pytest.raises(NoProgramError, match="ShardedGradScaler fails with fused optimizers"):
        program(case_of("fsdp1", **fused))
    assert program(case_of("fsdp", **fused))


FIELDS: list[dict[str, Any]] = [
    {"precision": "tf32"},
    {"precision": "bf16-amp"},
    {"precision": "fp16-amp"},
    {"precision": "bf16"},
    {"compile": "default"},
    {"compile": "max-autotune"},
    {"compile": "default", "compile_scope": "inside"},
    {"compile": "default", "compile_scope": "blocks"},
    {"optimizer": "sgd"},
    {"optimizer_kernels": "foreach"},
    {"optimizer_kernels": "fused"},
    {"optimizer_kernels": "for-loop"},
    {"accumulation_steps": 4},
    {"accumulation_steps": 4, "accumulation_sync": "every"},
    {"activation_checkpointing": True},
    {"env": {"NCCL_ALGO": "Ring"}},
    {"per_device_batch": 7},
    {"world_size": 3},
    {"seed": 5},
    {"device": "cpu", "backend": "gloo"},
    {"nodes": 2},
]


@pytest.mark.parametrize("strategy", [*WRAPPERS])
def test_each_field_changes_the_program(strategy: str) -> None:
    one: dict[str, Any] = {"world_size": 1} if strategy == "single" else {}
    texts = [program(case_of(strategy, **one))]
    for changes in FIELDS:
        if strategy == "dp" and changes.get("device") == "cpu":
            continue
        if strategy in {"single", "dp"} and (changes.keys() & {"nodes", "world_size"}):
            continue
        if strategy in {"single", "dp"} and "accumulation_sync" in changes:
            continue  # there is nothing to synchronise
        if strategy == "deepspeed" and (  # refused by the strategy
            "accumulation_sync" in changes or changes.get("precision") in {"fp16-amp", "bf16"}
        ):
            continue
        texts.append(program(case_of(strategy, **one | changes)))
    for text in texts:
        ast.parse(text)
    assert len({*texts}) == len(texts)


def test_the_command_starts_as_many_processes_as_were_measured() -> None:
    assert command(case_of("single", world_size=1)) == "python train.py"
    assert command(case_of("dp")) == "python train.py"
    one_host = "torchrun --standalone --nproc-per-node 4 train.py"
    assert command(case_of("ddp", env={"NCCL_ALGO": "Ring"})) == f"NCCL_ALGO=Ring {one_host}"
    assert "--nnodes 2 --nproc-per-node 2 " in command(case_of("ddp", nodes=2))


def test_a_reference_implementation_is_no_program() -> None:
    with pytest.raises(NoProgramError, match="does nothing on a CPU"):
        program(case_of("dp", device="cpu", backend="gloo"))
    with pytest.raises(NoProgramError, match="for the strategy tests"):
        program(case_of("tests.fakes:OWN"))
    with pytest.raises(NoProgramError, match="the option newer of ddp"):
        program(case_of("ddp", {"newer": 1}))


def calls_in(text: str, name: str) -> list[dict[str, str]]:
    """Keyword arguments of each call of a function in a program."""
    return [
        {str(one.arg): ast.unparse(one.value) for one in node.keywords}
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    ]


OLD_NAMES = {} if accepts("forward_sync_buffers") else {"broadcast_buffers": "forward_sync_buffers"}
"""Of this torch's arguments, each with its name in a program, which says how it was called."""


@pytest.mark.parametrize("options", [one for one in VARIANTS["ddp"] if not LOSSY & one.keys()])
def test_ddp_is_given_what_it_was_measured_with(options: dict[str, Any]) -> None:
    (given,) = calls_in(program(case_of("ddp", options)), "DistributedDataParallel")
    assert given.pop("device_ids") == "[local_rank]"
    measured = ddp.arguments(msgspec.convert(options, DDPOptions))
    expected = {OLD_NAMES.get(name, name): value for name, value in measured.items()}
    assert {name: ast.literal_eval(value) for name, value in given.items()} == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stage": 2, "reduce_bucket_size": 1000, "overlap_comm": True},
        {"stage": 3, "offload_optimizer": "cpu", "stage3_max_reuse_distance": 5},
    ],
)
def test_deepspeed_is_told_what_it_was_measured_with(options: dict[str, Any]) -> None:
    case = case_of("deepspeed", options, precision="bf16-amp", accumulation_steps=4)
    (assigned,) = [
        node.value for node in ast.walk(ast.parse(program(case)))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "config"
    ]  # fmt: skip
    context = Context(
        device=torch.device("cpu"), rank=0, world_size=4, precision="bf16-amp",
        accumulation_steps=4, options=None,
    )  # fmt: skip
    measured = engine_config(msgspec.convert(options, DeepSpeedOptions), context)
    del measured["timers"]  # which are the harness's own
    measured["train_micro_batch_size_per_gpu"] = case.per_device_batch
    told = ast.literal_eval(assigned)
    assert told == measured


EVIL = '"); import os; os.system("echo owned"); ("'


@pytest.mark.parametrize(
    ("strategy", "options", "changes"),
    [
        ("ddp", {}, {"device": EVIL}),
        ("ddp", {}, {"backend": EVIL}),
        ("ddp", {}, {"env": {"NCCL_ALGO": "$(reboot)"}}),
        ("ddp", {}, {"label": f'""" {EVIL}\n{EVIL}\\'}),
        ("ddp", {"bucket_cap_mb": EVIL}, {}),
        ("fsdp", {"shard_size": EVIL}, {}),
        ("fsdp", {"reshard_after_forward": EVIL}, {}),
        ("fsdp", {"mixed_precision": EVIL}, {}),
        ("fsdp1", {"sharding_strategy": EVIL}, {}),
        ("deepspeed", {"stage": EVIL}, {}),
        ("deepspeed", {"offload_optimizer": EVIL}, {}),
    ],
)
def test_text_from_records_is_never_code(
    strategy: str, options: dict[str, Any], changes: dict[str, Any]
) -> None:
    try:
        tree = ast.parse(program(case_of(strategy, options, **changes)))
    except NoProgramError:
        return
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert "os.system" not in calls


def run_in_this_process(case: Case, folder: Path, port: int, rank: int = 0) -> nn.Module:
    """Run a case's program for three steps; what forward was called on."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": case.world_size}
    variables = {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    path = folder / f"train-{rank}.py"
    path.write_text(program(case), encoding="utf-8")
    names = runpy.run_path(str(path), run_name="program")
    module = names["main"](steps=3)
    assert isinstance(module, nn.Module)
    return module


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # and so put back afterwards
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


ONE_RANK: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("single", {}, {"activation_checkpointing": True}, "Model"),
    ("ddp", {"gradient_as_bucket_view": True}, {"precision": "bf16-amp"}, "Distributed"),
    ("ddp", {"static_graph": True, "bucket_cap_mb": 1}, {"accumulation_steps": 3}, "Distributed"),
    ("ddp", {"broadcast_buffers": False}, {"optimizer_kernels": "fused"}, "Distributed"),
    ("zero", {"parameters_as_bucket_view": True}, {"optimizer": "sgd"}, "Distributed"),
    ("fsdp", {}, {"accumulation_steps": 2, "activation_checkpointing": True}, "FSDPModel"),
    ("fsdp", {"mixed_precision": "bf16", "wrap": "root"}, {"precision": "bf16-amp"}, "FSDPModel"),
    ("fsdp1", {}, {"accumulation_steps": 2, "precision": "bf16-amp"}, "FullySharded"),
]


@pytest.mark.filterwarnings("ignore:The `NO_SHARD` sharding strategy is deprecated:FutureWarning")
@pytest.mark.parametrize(("strategy", "options", "changes", "kind"), ONE_RANK)
def test_a_program_trains_on_one_rank(
    *,
    tmp_path: Path,
    port: int,
    capsys: pytest.CaptureFixture[str],
    strategy: str,
    options: dict[str, Any],
    changes: dict[str, Any],
    kind: str,
) -> None:
    if OLD_NAMES.keys() & options.keys():
        pytest.skip("this torch has forward_sync_buffers under its old name")
    one = {"device": "cpu", "backend": "gloo", "world_size": 1}
    threads = torch.get_num_threads()
    module = run_in_this_process(case_of(strategy, options, **one | changes), tmp_path, port)
    torch.set_num_threads(threads)
    assert type(module).__name__.startswith(kind)
    assert isinstance(module, FSDPModule) == (strategy == "fsdp")
    if isinstance(module, DistributedDataParallel):
        assert module.static_graph == options.get("static_graph", False)
        assert module.gradient_as_bucket_view == options.get("gradient_as_bucket_view", False)
        assert module.bucket_bytes_cap == 2**20 * options.get("bucket_cap_mb", 25)
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in out] == ["step 0", "step 1", "step 2"]


def _train(rank: int, port: int, out: str) -> None:
    case = case_of("ddp", {"bucket_cap_mb": 0.01, "static_graph": True}, device="cpu",
                   backend="gloo", world_size=2, accumulation_steps=2)  # fmt: skip
    module = run_in_this_process(case, Path(out), port, rank)
    torch.save([parameter.detach() for parameter in module.parameters()], f"{out}/{rank}.pt")


def test_the_program_of_ddp_trains_two_ranks_alike(
    launcher: Launcher, port: int, tmp_path: Path
) -> None:
    del launcher  # which has a server that forks processes with torch in them
    context = multiprocessing.get_context("forkserver")
    ranks = [context.Process(target=_train, args=(rank, port, str(tmp_path))) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=120)
    assert [process.exitcode for process in ranks] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
