"""DDP's settings: which go together, what torch is passed, and what each does to training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from bench.measure import allocations
from bench.measure.ranges import STEPS, mark_range
from bench.measure.trace import read_events
from bench.plan.case import Case
from bench.records.record import Parity
from bench.run.launch import Launcher
from bench.strategies import comm_hooks, ddp, ddp_check
from bench.strategies.base import Context, Mark
from bench.strategies.ddp import FirstSynchronised
from bench.strategies.ddp_options import DDPOptions
from bench.strategies.nature import Rhythm
from tests.fakes import TWO_CORES, make_case, world_of_one
from tests.measure.test_reference import make_problem
from tests.strategies.test_contract import planned_case, prove
from workloads.base import Facts

PLAIN = Facts(unit="token")
SPARSE = Facts(unit="sample", has_sparse_gradients=True)
UNUSED = Facts(unit="token", has_unused_parameters=True)
IMAGES = Facts(unit="image", has_batch_norm=True)


WITH_LISTS = pytest.mark.skipif(
    not ddp_check.accepts("bucket_cap_mb_list"), reason="this torch has no bucket_cap_mb_list"
)


def case_of(options: dict[str, Any], **changes: Any) -> Case:
    settings = msgspec.to_builtins(msgspec.convert(options, DDPOptions))
    return make_case(strategy="ddp", world_size=2, options=settings, **changes)


def reason(options: dict[str, Any], facts: Facts = PLAIN, **changes: Any) -> str | None:
    return ddp.check(facts, case_of(options, **changes), TWO_CORES)


@pytest.mark.parametrize(
    ("options", "facts", "changes", "words"),
    [
        ({}, UNUSED, {}, ("second step", "find_unused_parameters or static_graph")),
        (
            {"find_unused_parameters": True, "static_graph": True},
            UNUSED,
            {},
            ("by itself", "leave find_unused_parameters out"),
        ),
        pytest.param(
            {"bucket_cap_mb": 1, "bucket_cap_mb_list": [1]},
            PLAIN,
            {},
            ("ignores", "leave one"),
            marks=WITH_LISTS,
        ),
        ({"powersgd_rank": 2}, PLAIN, {}, ("do nothing", "comm_hook: powersgd")),
        ({"comm_hook": "fp16", "powersgd_start": 3}, PLAIN, {}, ("do nothing", "powersgd")),
        ({"local_sgd_start": 5}, PLAIN, {}, ("does nothing", "local_sgd_period")),
        ({"local_sgd_period": 1}, PLAIN, {}, ("saves nothing", "2 or more")),
        ({"local_sgd_period": 4, "comm_hook": "bf16"}, PLAIN, {}, ("one hook", "leave")),
        ({"local_sgd_period": 4}, PLAIN, {"precision": "fp16-amp"}, ("wait", "bf16-amp")),
        (
            {"comm_hook": "powersgd", "powersgd_start": 1},
            PLAIN,
            {},
            ("torch refuses", "first two iterations", "2 or more"),
        ),
        ({"comm_hook": "powersgd"}, SPARSE, {}, ("sparse", "use dense ones")),
        ({"comm_hook": "powersgd"}, PLAIN, {"precision": "fp16-amp"}, ("overflow", "bf16-amp")),
    ],
)
def test_what_cannot_run_has_its_reason_and_its_remedy(
    options: dict[str, Any], facts: Facts, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    found = reason(options, facts, **changes)
    assert found is not None
    for word in words:
        assert word in found


@pytest.mark.parametrize(
    ("options", "facts", "changes"),
    [
        ({}, PLAIN, {"accumulation_steps": 2}),
        ({"static_graph": True}, UNUSED, {"accumulation_steps": 2}),
        ({"find_unused_parameters": True}, UNUSED, {}),
        ({"find_unused_parameters": True}, PLAIN, {}),
        ({"broadcast_buffers": False}, PLAIN, {}),
        ({"comm_hook": "fp16"}, PLAIN, {"precision": "fp16-amp"}),
        ({"comm_hook": "powersgd", "powersgd_rank": 4}, UNUSED, {"options_of": "static_graph"}),
        ({"local_sgd_period": 2, "local_sgd_start": 7}, SPARSE, {}),
    ],
)
def test_what_can_run_is_not_skipped(
    options: dict[str, Any], facts: Facts, changes: dict[str, Any]
) -> None:
    also = changes.pop("options_of", None)
    assert reason(options | ({also: True} if also else {}), facts, **changes) is None


def test_what_torch_lacks_is_asked_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, hook: Any) -> None:
        self._log_and_throw(TypeError, f"{hook.__name__} needs\na newer build.")

    def without(_: str) -> bool:
        return False

    monkeypatch.setattr(DistributedDataParallel, "_check_comm_hook", refuse)
    monkeypatch.setattr(comm_hooks, "adds_sparse", without)
    monkeypatch.setattr(ddp_check, "accepts", without)
    assert reason({"comm_hook": "bf16"}) == (
        "the installed torch refuses the bf16 hook: bf16_compress_hook needs a newer build; "
        "use comm_hook: fp16"
    )
    assert "newer torch" in (reason({"bucket_cap_mb_list": [1, 2]}) or "")
    monkeypatch.undo()
    monkeypatch.setattr(comm_hooks, "adds_sparse", without)
    assert "cannot add sparse gradients" in (reason({"comm_hook": "fp16"}, SPARSE) or "")


def test_what_a_setting_cannot_show_or_costs_is_said() -> None:
    def flags(options: dict[str, Any], facts: Facts = PLAIN, **changes: Any) -> list[str]:
        return list(ddp.flags(facts, case_of(options, **changes)))

    assert flags({}) == []
    assert flags({"find_unused_parameters": True}) == ["overhead_only"]
    assert flags({"find_unused_parameters": True}, UNUSED) == []
    assert flags({"broadcast_buffers": False}) == ["no_buffers"]
    assert flags({"broadcast_buffers": False}, IMAGES) == []
    assert flags({"comm_hook": "powersgd"}) == ["hook_in_turn", "allocations_unseen"]
    assert flags({"comm_hook": "powersgd"}, device="cuda", backend="nccl") == ["host_waits"]
    assert flags({"local_sgd_period": 4}) == []
    assert flags({"local_sgd_period": 4}, device="cuda", backend="nccl") == ["host_waits"]


def test_buffers_are_left_alone_under_the_name_that_torch_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = DDPOptions(broadcast_buffers=False, comm_hook="powersgd", powersgd_rank=2)
    for new, name in ((True, "forward_sync_buffers"), (False, "broadcast_buffers")):
        monkeypatch.setattr(ddp_check, "accepts", lambda _, new=new: new)
        assert ddp.arguments(options) == {name: False}
    assert ddp.arguments(DDPOptions(bucket_cap_mb_list=[1, 25], find_unused_parameters=True)) == {
        "bucket_cap_mb_list": [1, 25],
        "find_unused_parameters": True,
    }


def test_only_the_very_first_region_of_a_static_graph_synchronises() -> None:
    region = FirstSynchronised(lambda: contextlib.nullcontext("local"))
    found = []
    for _ in range(3):
        with region() as kind:
            found.append(kind)
    assert found == [None, "local", "local"]


def context(options: DDPOptions, **changes: Any) -> Context:
    fields: dict[str, Any] = {
        "device": torch.device("cpu"),
        "rank": 0,
        "world_size": 1,
        "precision": "fp32",
        "accumulation_steps": 1,
        "options": options,
    }
    return Context(**(fields | changes))


@pytest.mark.parametrize(
    ("steps", "settings", "static_graph", "expected"),
    [
        (3, {}, False, 3),
        (3, {"accumulation_steps": 4}, False, 3),
        (3, {"accumulation_steps": 4}, True, 4),  # the first micro-step of all has its own
        (0, {"accumulation_steps": 4}, True, 0),
        (3, {"accumulation_steps": 4, "accumulation_sync": "every"}, False, 12),
        (3, {"accumulation_steps": 4, "accumulation_sync": "every"}, True, 12),
    ],
)
def test_a_hook_is_called_for_each_backward_that_synchronises(
    steps: int, settings: dict[str, Any], static_graph: bool, expected: int
) -> None:
    where = context(DDPOptions(), **settings)
    assert comm_hooks.calls_in(steps, where, static_graph=static_graph) == expected


def test_a_start_is_a_settling_and_a_proof_needs_none_that_is_long() -> None:
    late: dict[str, Any] = {"comm_hook": "powersgd", "powersgd_start": 1000}
    assert ddp.rhythm(late) == Rhythm(settle_steps=1000)
    assert ddp.rhythm(ddp.in_few_steps(late)) == Rhythm(settle_steps=2)
    assert ddp.exactness(late).kind == "lossy"
    local: dict[str, Any] = {"local_sgd_period": 64, "local_sgd_start": 500}
    assert ddp.rhythm(local) == Rhythm(settle_steps=500, period=64)
    assert ddp.rhythm(ddp.in_few_steps(local)) == Rhythm(settle_steps=1, period=2)
    assert ddp.exactness(local).kind == "local"
    for options in ({}, {"static_graph": True}, {"powersgd_start": 9}):
        assert ddp.rhythm(options) == Rhythm()
        assert ddp.exactness(options).kind == "exact"


@pytest.fixture
def alone() -> Iterator[None]:
    world_of_one()
    yield
    torch.distributed.destroy_process_group()


def train(options: DDPOptions, steps: int = 3) -> Any:
    session = ddp.prepare(make_problem(), context(options))
    batches = make_problem().batches(0, 1)
    for _ in range(steps):
        session.micro_step(next(batches), sync=True, mark=lambda _: None)
        session.optimizer_step()
    session.micro_step(next(batches), sync=True, mark=lambda _: None)
    return session


@WITH_LISTS
@pytest.mark.usefixtures("alone")
def test_each_bucket_has_its_cap_and_the_last_one_holds_for_the_rest() -> None:
    layouts = []
    for caps in ([0.02, 0.1], [0.1, 0.02]):
        session = train(DDPOptions(bucket_cap_mb_list=caps))
        layouts.append(session.bucket_bytes())
        session.close()
    first, second = layouts
    assert sum(first) == sum(second)
    assert 0.02 * 2**20 <= first[0] < 0.1 * 2**20 <= second[0]
    assert min(first[1:-1]) >= 0.1 * 2**20 > max(second[1:])
    assert len(second) > len(first)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("options", [{}, {"comm_hook": "fp16"}, {"comm_hook": "powersgd"}])
def test_gradients_share_storage_where_they_are_views_of_buckets(options: dict[str, Any]) -> None:
    shared = {}
    for view in (False, True):
        session = train(DDPOptions(gradient_as_bucket_view=view, **options))
        gradients = [gradient for _, gradient in session.full_gradients()]
        shared[view] = [one.untyped_storage().nbytes() > one.nbytes for one in gradients]
        session.close()
    assert not any(shared[False])
    assert all(shared[True])


@pytest.mark.usefixtures("alone")
def test_post_local_sgd_holds_its_parameters_twice_while_it_averages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And neither before nor after, nor anything else: as torch says of its averages."""
    monkeypatch.setattr(allocations, "POINTS", 10**6)
    problem, held = make_problem(), []
    size = sum(parameter.nbytes for parameter in problem.model.parameters())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        options = DDPOptions(local_sgd_start=1, local_sgd_period=2)
        session = ddp.prepare(problem, context(options))
        batches = problem.batches(0, 1)

        def mark(phase: str) -> None:
            with record_function(mark_range(phase)):
                held.append(session.held_addresses())

        def step(note: Mark) -> None:
            session.micro_step(next(batches), sync=True, mark=note)
            session.optimizer_step()
            note("optimizer")

        for _ in range(2):
            step(lambda _: None)
        with record_function(STEPS):
            for _ in range(2):
                step(mark)
    session.close()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = allocations.read_allocations(read_events(tmp_path / "trace.json"), 1, held)
    alive = [one for _, one in found.timeline]
    parameters = [one["parameters"] for one in alive]
    assert set(parameters) == {size, 2 * size}
    assert parameters[0] == parameters[-1] == size
    (state,) = {one["optimizer_state"] for one in alive}
    assert 2 * size <= state < 2.01 * size  # two moments, and a count of each parameter
    assert max(one.get("gradients", 0) for one in alive) == size


def proof(
    launcher: Launcher,
    folder: Path,
    options: dict[str, Any],
    *,
    strategy: str = "ddp",
    workload: str = "transformer",
    unused: bool = False,
    **settings: Any,
) -> Parity:
    world_size = 1 if strategy == "single" else 2
    case = planned_case(f"{workload}:tiny", strategy, world_size, **settings)
    branch = {"unused_branch": True} if unused else {}
    case = msgspec.structs.replace(
        case,
        options=case.options | options,
        workload_options=case.workload_options | branch,
    )
    return prove(launcher, case, folder)


@pytest.mark.parametrize(
    ("options", "steps", "unused"),
    [
        ({"static_graph": True}, 2, False),
        ({"static_graph": True, "gradient_as_bucket_view": True}, 3, True),
        ({"find_unused_parameters": True}, 1, True),
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, 2, True),
    ],
)
def test_static_graphs_accumulate_and_unused_parameters_are_found(
    launcher: Launcher, tmp_path: Path, options: dict[str, Any], steps: int, unused: bool
) -> None:
    found = proof(launcher, tmp_path, options, unused=unused, accumulation_steps=steps)
    assert found.verdict == "exact", found.reason
    assert found.max_rank_divergence == 0
    assert found.gradient_deviation is None


@pytest.mark.parametrize("strategy", ["single", "dp", "fsdp"])
def test_other_strategies_need_no_setting_for_unused_parameters(
    launcher: Launcher, tmp_path: Path, strategy: str
) -> None:
    found = proof(launcher, tmp_path, {}, strategy=strategy, unused=True)
    assert found.verdict == "exact", found.reason


@pytest.mark.parametrize(
    ("options", "span", "settings"),
    [
        # Rounding twice to 11 and to 8 bits.
        ({"comm_hook": "fp16"}, (1e-5, 2**-10), {}),
        ({"comm_hook": "bf16", "static_graph": True}, (1e-4, 2**-7), {"accumulation_steps": 2}),
        # One direction of each matrix is kept; several buckets, and messages of the search too.
        (
            {"comm_hook": "powersgd", "bucket_cap_mb": 0.05, "find_unused_parameters": True},
            (0.1, 0.99),
            {"unused": True},
        ),
    ],
)
def test_a_hook_states_what_it_loses_and_leaves_all_ranks_equal(
    launcher: Launcher,
    tmp_path: Path,
    options: dict[str, Any],
    span: tuple[float, float],
    settings: dict[str, Any],
) -> None:
    found = proof(launcher, tmp_path, options, **settings)
    assert found.verdict == "lossy_by_design", found.reason
    assert found.max_rank_divergence == 0
    assert found.gradient_deviation is not None
    assert span[0] < found.gradient_deviation < span[1]
    assert found.loss_deviation is not None
    assert found.loss_deviation < 0.01
    assert found.parameter_deviation is not None
    assert found.parameter_deviation > 0
    assert found.exact_steps == (2 if options["comm_hook"] == "powersgd" else 0)
    assert found.error is not None  # up to the first compressed gradient all is exact
    assert found.error < 1e-6


def test_post_local_sgd_trains_apart_and_is_equal_after_each_average(
    launcher: Launcher, tmp_path: Path
) -> None:
    found = proof(launcher, tmp_path, {"local_sgd_period": 8, "local_sgd_start": 30})
    assert found.verdict == "lossy_by_design", found.reason  # apart in between, else it had failed
    assert found.max_rank_divergence == 0
    assert (found.exact_steps, found.steps) == (1, 4)
    assert found.gradient_deviation is None
    assert found.parameter_deviation is not None
    assert 0 < found.parameter_deviation < 0.95


def test_a_gradient_of_few_directions_may_go_through_compression_whole(
    launcher: Launcher, tmp_path: Path
) -> None:
    case = planned_case("embedding:tiny", "ddp", 2)
    hook = {"comm_hook": "powersgd", "powersgd_rank": 4, "powersgd_start": 2}
    found = prove(launcher, msgspec.structs.replace(case, options=case.options | hook), tmp_path)
    assert found.gradient_deviation == pytest.approx(0, abs=1e-9)
    assert found.verdict == "lossy_by_design"
    assert "no more directions than are kept" in (found.reason or "")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("NEVER_AVERAGED", "and should be equal"),
        ("NEVER_APART", "and should train apart"),
        ("NEVER_COMPRESSED", "nothing was compressed"),
        ("SUMMED", "length of the gradient"),
        ("ONE_TENSOR_LOCAL", "gradient of norm.bias is off"),
    ],
)
def test_inexact_by_design_is_no_excuse_for_other_faults(
    launcher: Launcher, tmp_path: Path, fault: str, words: str
) -> None:
    case = planned_case("transformer:tiny", f"tests.fakes:{fault}", 2)
    local = fault in {"NEVER_AVERAGED", "NEVER_APART"}
    hook = {"local_sgd_period": 2} if local else {"comm_hook": "bf16"}
    case = msgspec.structs.replace(case, options=case.options | hook)
    found = prove(launcher, case, tmp_path)
    assert found.verdict == "failed"
    assert words in (found.reason or "")
