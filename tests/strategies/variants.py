"""Options of each strategy that are proved one by one: every setting, and pairs that meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "ddp": [
        {"bucket_cap_mb": 0.05},
        {"bucket_cap_mb": 25},
        {"bucket_cap_mb_list": [0.01, 0.1]},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"broadcast_buffers": False},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        {"comm_hook": "fp16"},
        {"comm_hook": "bf16"},
        {"comm_hook": "powersgd"},
        {"comm_hook": "powersgd", "powersgd_rank": 4},
        {"comm_hook": "powersgd", "powersgd_start": 5},
        {"comm_hook": "fp16", "gradient_as_bucket_view": True},
        {"comm_hook": "bf16", "static_graph": True},
        {"comm_hook": "fp16", "find_unused_parameters": True},
        {"comm_hook": "powersgd", "bucket_cap_mb": 0.05},
        {"comm_hook": "powersgd", "static_graph": True, "gradient_as_bucket_view": True},
        {"comm_hook": "powersgd", "find_unused_parameters": True},
        {"comm_hook": "hierarchical"},
        {"comm_hook": "hierarchical", "bucket_cap_mb": 0.05, "gradient_as_bucket_view": True},
        {"comm_hook": "hierarchical", "static_graph": True},
        {"comm_hook": "hierarchical", "find_unused_parameters": True},
        {"local_sgd_period": 2},
        {"local_sgd_period": 4, "local_sgd_start": 3},
        {"local_sgd_period": 4, "gradient_as_bucket_view": True},
        {"local_sgd_period": 4, "static_graph": True},
        {"local_sgd_period": 4, "find_unused_parameters": True},
    ],
    "fsdp": [
        {},
        {"reshard_after_forward": False},
        {"reshard_after_forward": True},
        {"reshard_after_forward": 2},
        {"mixed_precision": "bf16"},
        {"mixed_precision": "bf16", "reduce_dtype": "fp32"},
        {"mixed_precision": "bf16", "reshard_after_forward": False},
        {"mixed_precision": "bf16", "shard_size": 2},
        {"mixed_precision": "bf16", "wrap": "root"},
        {"mixed_precision": "fp16"},
        {"shard_size": 2},
        {"shard_size": 2, "reshard_after_forward": False},
        {"wrap": "root"},
        {"wrap": "root", "reshard_after_forward": True},
    ],
    "fsdp1": [
        {},
        {"sharding_strategy": "shard_grad_op"},
        {"sharding_strategy": "no_shard"},
        {"mixed_precision": "bf16"},
        {"mixed_precision": "bf16", "reduce_dtype": "fp32"},
        {"mixed_precision": "bf16", "shard_size": 2},
        {"mixed_precision": "bf16", "sharding_strategy": "no_shard"},
        {"mixed_precision": "fp16"},
        {"shard_size": 2},
        {"shard_size": 2, "sharding_strategy": "shard_grad_op"},
        {"wrap": "root"},
        {"wrap": "root", "sharding_strategy": "shard_grad_op"},
    ],
    "zero": [
        {},
        {"parameters_as_bucket_view": True},
    ],
}


def world_size_for(options: Mapping[str, Any]) -> int:
    """The least number of devices that options can run on: groups of several need several."""
    resharded = options.get("reshard_after_forward")
    is_size = isinstance(resharded, int) and not isinstance(resharded, bool)
    in_groups = options.get("shard_size") is not None or has_levels(options)
    return 4 if is_size or in_groups else 2


def has_levels(options: Mapping[str, Any]) -> bool:
    """Whether options are of ranks on several hosts, several on each."""
    return options.get("comm_hook") == "hierarchical"


def strategy_for(strategy: str, options: Mapping[str, Any]) -> str:
    """What proves options on one machine: ranks that are told that they are on two hosts."""
    return "tests.fakes:TWO_HOSTS" if has_levels(options) else strategy


def precision_for(options: Mapping[str, Any]) -> str:
    """The precision that options ask for by themselves."""
    narrow = options.get("mixed_precision")
    return "fp32" if narrow is None else f"{narrow}-amp"
