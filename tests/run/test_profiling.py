from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from bench.errors import BenchError
from bench.measure.clock import HostClock
from bench.plan.case import Effort, Machine, Window
from bench.predict.buckets import layout
from bench.predict.network import Level, Network, Places
from bench.predict.scaling import Wanted, predict
from bench.records.profile import Gradient, fault_of_profile
from bench.run.launch import Launcher
from bench.run.loop import Engine
from bench.run.profile_marks import cumulated, laid_out, marked
from bench.run.profiling import base_case, measure_profile
from bench.strategies.sharding import whole_bytes
from tests.fakes import FakeSession

BRIEF = Effort(launches=1, warmup_steps=2, window=Window(min_steps=4, max_s=0.1))


def test_shares_rise_and_end_with_the_phase() -> None:
    phase_s = {"backward": [2.0, 2.0], "backward.7": [0.5, 0.5], "backward.3": [1.0, 1.0]}
    assert cumulated(phase_s, "backward", [7, 3]) == [0.25, 0.75]
    assert cumulated(phase_s, "backward", [7, 3, 7, 7]) == [0.25, 0.75, 1.0, 1.0]


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Linear(2, 2, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))
        self.head = nn.Linear(2, 2, bias=False)


def test_units_share_out_the_phases_and_the_root_has_what_is_left() -> None:
    model = _Two()
    ready = {"head.weight": 0.5, "blocks.1.weight": 2.0, "blocks.0.weight": 3.0}
    gradients = [Gradient(name=name, bytes=16, ready_s=at) for name, at in ready.items()]
    gradients.append(Gradient(name="tokens.weight", bytes=16, ready_s=4.0))
    first, second, root = laid_out(
        list(model.blocks),
        model,
        whole_bytes(model),
        gradients,
        [0.25, 0.75],
        {"forward": 4.0, "backward": 4.0},
    )
    assert (first.forward_s, second.forward_s, root.forward_s) == (1.0, 2.0, 1.0)
    # Backward: the head to 0.5 s, the second block to 2 s, the first to 3 s, the rest to 4 s.
    assert (first.backward_s, second.backward_s, root.backward_s) == (1.0, 1.5, 1.5)
    assert (first.bytes, second.bytes, root.bytes) == (16, 16, 32)


def test_marks_are_those_of_one_step_in_the_order_in_which_gradients_come() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    class _Training(FakeSession):
        def micro_step(self, batch: object, *, sync: bool, mark: object) -> torch.Tensor:
            assert callable(mark)
            loss: torch.Tensor = model(torch.ones(1, 4)).sum()
            mark("forward")
            loss.backward()  # type: ignore[no-untyped-call]
            mark("backward")
            return loss.detach()

        def optimizer_step(self) -> None:
            model.zero_grad()

    engine = Engine(
        session=_Training(sleep=None),
        batches=itertools.repeat(None),  # type: ignore[arg-type]
        clock=HostClock(),
        slowest=lambda value: value,
        accumulation_steps=1,
    )
    gradients, forward = marked(engine, model, [model[0], model[1]], 3)
    names = [name for name, _, _ in gradients]
    assert sorted(names) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert {name.partition(".")[0] for name in names[:2]} == {"1"}
    assert [size for name, size, _ in gradients if name == "0.weight"] == [64]
    shares = [share for _, _, share in gradients]
    assert shares == sorted(shares)
    assert 0 < forward[0] < forward[1] <= 1
    assert not model[0].weight._post_accumulate_grad_hooks


def test_a_profile_is_measured_and_predicts_what_it_was_measured_of(launcher: Launcher) -> None:
    machine = launcher.machine
    case, _ = base_case("transformer:tiny", machine, settings={"device": "cpu"})
    together = min(2, len(machine.cores))
    found = measure_profile(
        case, BRIEF, together=together, machine=machine, scratch=launcher.scratch
    )
    assert fault_of_profile(found) is None
    assert found.case == case
    assert (found.contention is None) == (together == 1)
    sizes = [one.bytes for one in found.gradients]
    assert sum(sizes) == sum(one.bytes for one in found.units)
    assert len(layout(sizes, {})) >= 1
    assert found.copy_s_per_byte > 0
    assert found.ddp is not None
    assert found.fsdp is not None
    level = Level(bus_bytes_per_s=1e18, latency_s=0.0)
    alone = predict(
        found,
        Network(name="none", within=level),
        Wanted(strategy="single", places=Places(hosts=1, per_host=1)),
    )
    assert alone.step_s == pytest.approx(found.step_s)
    assert alone.speedup == pytest.approx(1.0)


def test_more_devices_than_there_are_cannot_be_measured_together(launcher: Launcher) -> None:
    machine = Machine(cores=(0,))
    case, effort = base_case("transformer:tiny", machine, settings={"device": "cpu"})
    with pytest.raises(BenchError, match="this machine has 1 cpu devices"):
        measure_profile(case, effort, together=2, machine=machine, scratch=launcher.scratch)


def test_what_is_not_there_cannot_be_profiled() -> None:
    machine = Machine(cores=(0,))
    with pytest.raises(BenchError, match="cuda"):
        base_case("transformer:tiny", machine, settings={"device": "cuda"})
    with pytest.raises(BenchError, match="unknown workload"):
        base_case("no_such", machine, settings={})
