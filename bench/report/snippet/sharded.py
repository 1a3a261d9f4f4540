"""Programs of both versions of FSDP."""

from __future__ import annotations

from typing import Any

from bench.plan.case import Case
from bench.report.snippet.pieces import (
    FUSED,
    Code,
    NoProgramError,
    Pieces,
    assign,
    call,
    changed,
    is_accelerated,
    number,
    torch_type,
)

SHARED: dict[str, Any] = {
    "mixed_precision": None,
    "reduce_dtype": None,
    "shard_size": None,
    "wrap": "units",
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "fsdp": {**SHARED, "reshard_after_forward": None, "cpu_offload": False},
    "fsdp1": {**SHARED, "sharding_strategy": "full_shard"},
}
WHOLE = {
    "full_shard": "FULL_SHARD",
    "shard_grad_op": "SHARD_GRAD_OP",
    "no_shard": "NO_SHARD",
}
HYBRID = {"full_shard": "HYBRID_SHARD", "shard_grad_op": "_HYBRID_SHARD_ZERO2"}
MESH = "from torch.distributed.device_mesh import init_device_mesh"


def _mesh(options: dict[str, Any]) -> str:
    """All ranks; under hybrid sharding, replicas times shards."""
    size = options.get("shard_size")
    if size is None:
        return "init_device_mesh(device.type, (DEVICES,))"
    shape = f"(DEVICES // {number(size)}, {size})"
    return f'init_device_mesh(device.type, {shape}, mesh_dim_names=("replicate", "shard"))'


def _types(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of either version's own mixed precision; empty without."""
    narrow, reduced = options.get("mixed_precision"), options.get("reduce_dtype")
    if narrow is None:
        return {}
    types: dict[str, Any] = {"param_dtype": torch_type(narrow)}
    if reduced is not None:
        types["reduce_dtype"] = torch_type(reduced)
    return types


def fsdp(case: Case) -> Pieces:
    """``fully_shard``: block by block, then what is left."""
    options = changed(case, DEFAULTS["fsdp"])
    types = _types(options)
    names = ["fully_shard"]
    settings: dict[str, Any] = {"mesh": Code("mesh")}
    if "reshard_after_forward" in options:
        settings["reshard_after_forward"] = options["reshard_after_forward"]
    if types:
        names.append("MixedPrecisionPolicy")
        settings["mp_policy"] = Code(call("MixedPrecisionPolicy", **types))
    if options.get("cpu_offload"):
        names.append("CPUOffloadPolicy")
        settings["offload_policy"] = Code(call("CPUOffloadPolicy", pin_memory=is_accelerated(case)))
    units = "[model]" if options.get("wrap") == "root" else "[*model.blocks, model]"
    wrap = [f"mesh = {_mesh(options)}", *assign("settings", "dict", **settings)]
    wrap += _wide_norms(units, types) if types else []
    wrap += [f"for unit in {units}:", "    fully_shard(unit, **settings)", "module = model"]
    return Pieces(
        imports=[MESH, f"from torch.distributed.fsdp import {', '.join(sorted(names))}"],
        wrap=wrap,
        switch="module.set_requires_gradient_sync(synchronises)",
        casts_itself=bool(types),
    )


def _wide_norms(units: str, types: dict[str, Any]) -> list[str]:
    """Batch norms in fp32 between layers in a narrow type: no policy casts their statistics."""
    policy = call(
        "MixedPrecisionPolicy",
        param_dtype=Code("torch.float32"),
        output_dtype=types["param_dtype"],
    )
    return [
        f"wide = {policy}",
        "seen = set()",
        f"for unit in {units}:",
        "    norms = [part for part in unit.modules() if isinstance(part, BATCH_NORMS)]",
        "    norms = [part for part in norms if part not in seen]",
        "    seen.update(norms)",
        "    if norms:  # older torch casts for the first and last of a list alone",
        '        fully_shard(norms, **settings | {"mp_policy": wide})',
    ]


def fsdp1(case: Case) -> Pieces:
    """``FullyShardedDataParallel``, a flat tensor for each block."""
    options = changed(case, DEFAULTS["fsdp1"])
    types = _types(options)
    names, imports = (
        ["FullyShardedDataParallel"],
        ["from torch.distributed.fsdp.wrap import CustomPolicy"],
    )
    settings: dict[str, Any] = {
        "auto_wrap_policy": Code("CustomPolicy(lambda part: part in units)"),
        "device_id": Code("device"),
        "use_orig_params": True,
        **_sharding(case, options),
    }
    if "device_mesh" in settings:
        imports.append(MESH)
    if "sharding_strategy" in settings:
        names.append("ShardingStrategy")
    if types:
        names.append("MixedPrecision")
        settings["mixed_precision"] = Code(call("MixedPrecision", **types))
    scaler = "torch.amp.GradScaler(device.type)"
    if case.precision == "fp16-amp":
        if case.optimizer_kernels == "fused":
            raise NoProgramError(FUSED)
        imports.append("from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler")
        scaler = "ShardedGradScaler(device.type)"
    units = "set()" if options.get("wrap") == "root" else "set(model.blocks)"
    made = assign("module", "FullyShardedDataParallel", "model", **settings)
    return Pieces(
        imports=[f"from torch.distributed.fsdp import {', '.join(sorted(names))}", *imports],
        wrap=[f"units = {units}", *made],
        region="module.no_sync()",
        scaler=scaler,
        unscales=True,
        casts_itself=bool(types),
    )


def _sharding(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments that say what is split, over which ranks."""
    kind, size = options.get("sharding_strategy", "full_shard"), options.get("shard_size")
    if case.world_size == 1:  # torch changes to it by itself, with a warning
        return {"sharding_strategy": Code("ShardingStrategy.NO_SHARD")}
    names = WHOLE if size is None else HYBRID
    if kind not in names:
        raise NoProgramError(f"no program is made for sharding_strategy {kind!r}")
    named = {"sharding_strategy": Code(f"ShardingStrategy.{names[kind]}")}
    if size is not None:
        return {"device_mesh": Code(_mesh(options)), **named}
    return {} if kind == "full_shard" else named
