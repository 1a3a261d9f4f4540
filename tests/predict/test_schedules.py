from __future__ import annotations

import time

import msgspec
import pytest

from bench.errors import BenchError
from bench.predict.network import Level, Places
from bench.predict.scaling import largest_of, predict
from bench.predict.sweep import as_predicted
from bench.records.check import fault_of
from bench.records.profile import Added, Unit
from bench.records.scaling import as_record
from tests.predict.made import MIB, TWO, network, profile, slowed, wanted

QUICK = 1e18


def names(found: object) -> list[str]:
    assert hasattr(found, "spans")
    return [span.task.name for span in found.spans]


def test_buckets_are_sent_while_backward_goes_on() -> None:
    # Gradients of 1 MiB at 1.5, 2, 2.5 and 3 s; one a second over the link: 1.5 to 5.5 s.
    found = predict(profile(), network(), wanted(options={"bucket_cap_mb": 1}))
    assert found.step_s == pytest.approx(6.0)
    assert found.communication_s == pytest.approx(4.0)
    assert found.exposed_s == pytest.approx(2.5)
    assert found.speedup == pytest.approx(2 * 3.5 / 6)
    assert found.no_overlap_s == pytest.approx(3.5 + 4)
    assert found.full_overlap_s == pytest.approx(1 + 4 + 0.5)


def test_one_bucket_hides_nothing() -> None:
    found = predict(profile(), network(), wanted(options={"bucket_cap_mb": 100}))
    assert found.step_s == pytest.approx(found.no_overlap_s) == pytest.approx(7.5)


def test_copies_into_buckets_and_out_of_them_cost_both_ways_or_one() -> None:
    made = profile(copy_s_per_byte=0.1 / MIB)
    both = predict(made, network(QUICK), wanted())
    view = predict(made, network(QUICK), wanted(options={"gradient_as_bucket_view": True}))
    assert both.step_s - view.step_s == pytest.approx(0.4)
    least = predict(
        msgspec.structs.replace(made, kernel_s=0.2),
        network(QUICK),
        wanted(options={"gradient_as_bucket_view": True}),
    )
    assert least.step_s - view.step_s == pytest.approx(0.4)


def test_what_the_wrapper_was_measured_to_add_stands_for_its_copies() -> None:
    added = Added(forward_s=0.3, backward_s=0.4)
    made = profile(copy_s_per_byte=9.0, ddp=added, buffers=1)
    plain = predict(profile(), network(QUICK), wanted())
    both = predict(made, network(QUICK), wanted())
    assert both.step_s - plain.step_s == pytest.approx(0.7)
    view = predict(made, network(QUICK), wanted(options={"gradient_as_bucket_view": True}))
    assert both.step_s - view.step_s == pytest.approx(0.2)


def test_a_hook_sends_half_and_takes_two_copies_more() -> None:
    made = profile(copy_s_per_byte=0.1 / MIB)
    cap = {"bucket_cap_mb": 100}
    plain = predict(made, network(), wanted(options=cap))
    half = predict(made, network(), wanted(options={**cap, "comm_hook": "bf16"}))
    assert plain.step_s - half.step_s == pytest.approx(2.0 - 2 * 0.4)


def test_a_search_for_unused_parameters_sends_one_message_more() -> None:
    found = predict(profile(), network(), wanted(options={"find_unused_parameters": True}))
    (used,) = [span for span in found.spans if span.task.name == "which parameters were used"]
    assert used.task.bytes == 4 * 4
    static = {"find_unused_parameters": True, "static_graph": True}
    assert "which parameters were used" not in names(
        predict(profile(), network(), wanted(options=static))
    )


def test_buffers_are_sent_before_forward() -> None:
    made = profile(buffers=3, buffer_bytes=2 * MIB)
    sent = predict(made, network(), wanted())
    kept = predict(made, network(), wanted(options={"broadcast_buffers": False}))
    assert sent.step_s - kept.step_s == pytest.approx(2.0)


def test_accumulation_synchronises_once_or_in_each_micro_step() -> None:
    cap = {"bucket_cap_mb": 100}
    once = predict(profile(), network(), wanted(options=cap, accumulation_steps=3))
    assert once.step_s == pytest.approx(3 * 3 + 4 + 0.5)
    every = predict(
        profile(),
        network(),
        wanted(options=cap, accumulation_steps=3, accumulation_sync="every"),
    )
    assert every.step_s == pytest.approx(3 * (3 + 4) + 0.5)
    assert once.case.global_batch == 8 * 2 * 3


def test_synchronised_norms_wait_for_each_of_their_collectives() -> None:
    made = profile(synchronised_layers=5)
    plain = predict(made, network(QUICK, latency_s=0.01), wanted())
    synchronised = predict(
        made, network(QUICK, latency_s=0.01), wanted(options={"sync_batchnorm": True})
    )
    # An all-gather of one step forward, an all-reduce of two backward.
    assert synchronised.step_s - plain.step_s == pytest.approx(5 * 0.03, rel=0.01)


def test_dp_moves_everything_through_one_device() -> None:
    made = profile(input_bytes=MIB, output_bytes=2 * MIB)
    four = Places(hosts=1, per_host=4)
    found = predict(made, network(), wanted("dp", four))
    # To and from three others 1 and 2 MiB each; 4 MiB of parameters out and of gradients back.
    assert found.step_s == pytest.approx(3.5 + 3 + 6 + 4 + 4)
    assert found.exposed_s == pytest.approx(17)


def test_zero_updates_a_share_and_sends_it() -> None:
    found = predict(profile(), network(QUICK), wanted("zero"))
    ddp = predict(profile(), network(QUICK), wanted())
    assert ddp.step_s - found.step_s == pytest.approx(0.25)
    whole = predict(
        profile(), network(QUICK), wanted("zero", options={"parameters_as_bucket_view": True})
    )
    assert whole.step_s == pytest.approx(found.step_s)


def test_fsdp_gathers_ahead_over_nccl_and_waits_over_gloo() -> None:
    # Units of 2 MiB: an all-gather or a reduce-scatter of one takes 1 s on two ranks.
    gloo = predict(profile(), network(), wanted("fsdp", backend="gloo"))
    # Both gathered and computed; the first again; both scattered; half of the optimizer.
    assert gloo.step_s == pytest.approx(2 * (1 + 0.5) + (1 + 1) + (1 + 1 + 1) + 0.25)
    nccl = predict(profile(), network(), wanted("fsdp"))
    assert nccl.step_s < gloo.step_s
    assert nccl.communication_s == pytest.approx(gloo.communication_s) == pytest.approx(5.0)
    order = [name for name in names(nccl) if name.startswith(("gather", "scatter"))]
    assert order == ["gather root", "gather 1", "gather 1 again", "scatter 2", "scatter 1"]


def test_what_fsdp_was_measured_to_add_is_in_each_of_its_units() -> None:
    plain = predict(profile(), network(QUICK), wanted("fsdp", backend="gloo"))
    added = Added(forward_s=0.3, backward_s=0.5)
    found = predict(profile(fsdp=added), network(QUICK), wanted("fsdp", backend="gloo"))
    # Of the two units one is kept for backward, which then lays out nothing.
    assert found.step_s - plain.step_s == pytest.approx(0.3 + 0.5 - 0.15)


def test_fsdp_that_keeps_what_it_gathered_gathers_less() -> None:
    kept = predict(profile(), network(), wanted("fsdp", options={"reshard_after_forward": False}))
    freed = predict(profile(), network(), wanted("fsdp", options={"reshard_after_forward": True}))
    assert kept.communication_s == pytest.approx(4.0)
    assert freed.communication_s == pytest.approx(6.0)


def test_fsdp_in_half_precision_moves_half() -> None:
    half = predict(profile(), network(), wanted("fsdp", options={"mixed_precision": "bf16"}))
    assert half.communication_s == pytest.approx(2.5)
    wide = predict(
        profile(),
        network(),
        wanted("fsdp", options={"mixed_precision": "bf16", "reduce_dtype": "fp32"}),
    )
    assert wide.communication_s == pytest.approx(1.5 + 2.0)


def test_hybrid_sharding_gathers_within_a_host_and_reduces_between() -> None:
    places = Places(hosts=2, per_host=2)
    over = network(QUICK, between=Level(bus_bytes_per_s=MIB, latency_s=0.0))
    whole = predict(profile(), over, wanted("fsdp", places))
    hybrid = predict(profile(), over, wanted("fsdp", places, options={"shard_size": 2}))
    # Between hosts go two halves of the gradients, each host's ranks at the same time.
    assert hybrid.communication_s < whole.communication_s
    assert "reduce 1" in names(hybrid)


def test_what_has_no_model_is_refused() -> None:
    for options, what in (
        ({"comm_hook": "powersgd"}, "PowerSGD"),
        ({"comm_hook": "hierarchical"}, "levels one after the other"),
    ):
        with pytest.raises(BenchError, match=what):
            predict(profile(), network(), wanted(options=options))
    with pytest.raises(BenchError, match="no schedule of 'another'"):
        predict(profile(), network(), wanted("another"))


def test_a_slower_computation_beside_communication_makes_steps_longer() -> None:
    plain = predict(profile(), network(4.0 * MIB), wanted(options={"bucket_cap_mb": 1}))
    made = slowed(profile(), computation=1.5)
    found = predict(made, network(4.0 * MIB), wanted(options={"bucket_cap_mb": 1}))
    assert found.step_s > plain.step_s


def test_all_wait_for_the_slowest() -> None:
    made = profile(step_variation=0.1)
    found = predict(made, network(QUICK), wanted(places=Places(hosts=1, per_host=8)))
    assert found.computation_s == pytest.approx(3.5 * (1 + 0.1 * largest_of(8)))


def test_strong_scaling_shares_the_batch_and_not_the_optimizer() -> None:
    made = profile(fixed_backward_s=0.4)
    found = predict(made, network(QUICK), wanted(scaling="strong"))
    assert found.case.per_device_batch == 4
    assert found.computation_s == pytest.approx(0.5 + 0.4 + 0.8 + 0.5)
    with pytest.raises(BenchError, match="cannot be shared out among 3 ranks"):
        predict(made, network(), wanted(places=Places(hosts=1, per_host=3), scaling="strong"))


def test_a_thousand_ranks_take_less_than_a_second_of_thought() -> None:
    made = profile(gradients=500)
    over = network(QUICK, between=Level(bus_bytes_per_s=MIB, latency_s=1e-5))
    begin = time.process_time()
    for strategy in ("ddp", "fsdp", "zero"):
        predict(made, over, wanted(strategy, Places(hosts=128, per_host=8)))
    assert time.process_time() - begin < 3


def test_a_predicted_row_has_the_shape_of_all_rows_and_says_what_it_is() -> None:
    one = as_predicted(predict(profile(), network(), wanted()), None)
    row = as_record(one, run_id="made", environment="made", unit="sample", units=1)
    assert row.flags == ["predicted"]
    assert fault_of(row) is None
    assert row.throughput is not None
    assert row.throughput.samples_per_s == pytest.approx(16 / one.step_s)
    assert row.phases is not None
    assert row.phases.forward_s == pytest.approx(1.0)
    assert row.phases.backward_s + row.phases.optimizer_s == pytest.approx(one.step_s - 1.0)
    assert TWO.ranks == row.case.world_size


def test_post_local_sgd_averages_parameters_now_and_then() -> None:
    # Four MiB at one a second, in one step of eight: half a second a step, after the optimizer.
    found = predict(profile(), network(), wanted(options={"local_sgd_period": 8}))
    assert found.step_s == pytest.approx(3.5 + 0.5)
    assert found.exposed_s == pytest.approx(0.5)


def test_fsdp1_is_fsdp_by_other_names() -> None:
    made = profile(units=[Unit(bytes=MIB, forward_s=0.25, backward_s=0.5) for _ in range(4)])
    newer = predict(made, network(), wanted("fsdp"))
    assert predict(made, network(), wanted("fsdp1")).step_s == newer.step_s
    held = predict(made, network(), wanted("fsdp", options={"reshard_after_forward": False}))
    older = wanted("fsdp1", options={"sharding_strategy": "shard_grad_op"})
    assert predict(made, network(), older).step_s == held.step_s < newer.step_s


def test_fsdp1_without_sharding_reduces_unit_by_unit() -> None:
    # Units of 2 MiB, ready at 2 and 3 s after forward's one: 2 to 4 s, and 4 to 6 s.
    asked = wanted("fsdp1", options={"sharding_strategy": "no_shard"})
    found = predict(profile(), network(), asked)
    assert found.step_s == pytest.approx(6.0 + 0.5)
    gathers = [one for one in found.spans if "gather" in one.task.name]
    assert all(one.end_s == one.begin_s for one in gathers)


def test_deepspeed_waits_for_backward_and_gathers_what_it_has_updated() -> None:
    zero = predict(profile(), network(), wanted("deepspeed", options={"stage": 0}))
    assert zero.step_s == pytest.approx(1 + 2 + 4 + 0.5)
    # An all-gather on two ranks takes half of an all-reduce; each updates half.
    for stage in (1, 2):
        found = predict(profile(), network(), wanted("deepspeed", options={"stage": stage}))
        assert found.step_s == pytest.approx(1 + 2 + 4 + 0.25 + 2)


def test_deepspeed_reduces_each_micro_step_in_stage_2_alone() -> None:
    for stage, times in ((1, 1), (2, 2)):
        asked = wanted("deepspeed", options={"stage": stage}, accumulation_steps=2)
        found = predict(profile(), network(), asked)
        assert found.step_s == pytest.approx(2 * 3 + times * 4 + 0.25 + 2)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"stage": 3}, "stage 3"),
        ({"stage": 1, "overlap_comm": True}, "overlap_comm"),
        ({"stage": 1, "offload_optimizer": "cpu"}, "offload"),
    ],
)
def test_what_deepspeed_does_at_run_time_is_refused(options: dict[str, object], what: str) -> None:
    with pytest.raises(BenchError, match=what):
        predict(profile(), network(), wanted("deepspeed", options=options))
