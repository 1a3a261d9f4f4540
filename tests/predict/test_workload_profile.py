from __future__ import annotations

import pytest

from bench.errors import BenchError
from bench.plan.case import Case
from bench.predict.catalogue import catalogue
from bench.predict.memory_plan import planned_cases, suite_of
from bench.predict.workload_profile import count, profile_of_workload
from bench.records.profile import fault_of_profile


def case_of(workload: str, batch: int = 4) -> Case:
    suite = suite_of(workload, "single", [1], device="cuda", per_device_batch=batch)
    (planned,) = planned_cases(suite, "cuda")
    return planned.case


def test_gradients_and_units_of_a_transformer_add_up() -> None:
    case = case_of("transformer:tiny")
    known = catalogue()
    found = profile_of_workload(case, throughput=40.0, device=known.device("V100"), known=known)
    assert fault_of_profile(found) is None
    assert found.step_s == pytest.approx(4 / 40)
    assert sum(one.bytes for one in found.units) == found.gradient_bytes
    assert len(found.units) == 3  # two blocks, and the root's own
    assert sum(one.forward_s for one in found.units) == pytest.approx(found.forward_s)
    assert found.unit == "token"
    # Backward goes from the last block to the first.
    ready = {one.name: one.ready_s for one in found.gradients}
    first, last = (
        max(at for name, at in ready.items() if name.startswith(f"blocks.{number}."))
        for number in (0, 1)
    )
    assert last < first
    # Two thirds of what the optimizer leaves are backward.
    left_s = found.step_s - found.optimizer_s
    assert found.backward_s == pytest.approx(2 / 3 * left_s)


def test_equal_blocks_have_equal_shares() -> None:
    found = count(case_of("transformer:tiny"))
    shares = [share for _, share in found.units[:-1]]
    assert shares[0] == pytest.approx(shares[1])
    assert sum(share for _, share in found.units) == pytest.approx(1)
    assert found.norms == 0


def test_a_throughput_of_nothing_is_a_mistake() -> None:
    known = catalogue()
    with pytest.raises(BenchError, match="above 0"):
        profile_of_workload(
            case_of("transformer:tiny"), throughput=0, device=known.devices[0], known=known
        )
