"""How each strategy wraps a model, with every setting that it can be given.

The defaults here are those of ``bench.strategies``, which needs torch; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.plan.case import Case
from bench.report.snippet import sharded
from bench.report.snippet.pieces import (
    LOSSY,
    OWN_HOOK,
    Code,
    NoProgramError,
    Pieces,
    assign,
    call,
    changed,
    is_accelerated,
    optimizer_arguments,
    optimizer_class,
)

DDP = "from torch.nn.parallel import DistributedDataParallel"
DEFAULTS: dict[str, dict[str, Any]] = {
    "single": {},
    "dp": {},
    "ddp": {
        "bucket_cap_mb": None,
        "bucket_cap_mb_list": None,
        "static_graph": False,
        "gradient_as_bucket_view": False,
        "find_unused_parameters": False,
        "broadcast_buffers": True,
        "comm_hook": "none",
        "powersgd_rank": 1,
        "powersgd_start": 2,
        "local_sgd_period": None,
        "local_sgd_start": 2,
        "sync_batchnorm": False,
    },
    "zero": {"parameters_as_bucket_view": False},
    "deepspeed": {
        "stage": 0,
        "reduce_bucket_size": 500_000_000,
        "overlap_comm": None,
        "contiguous_gradients": True,
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_param_persistence_threshold": 100_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "offload_optimizer": "none",
    },
    **sharded.DEFAULTS,
}


def single(case: Case) -> Pieces:
    """The model as it is."""
    changed(case, DEFAULTS["single"])
    return Pieces(wrap=["module = model"])


def dp(case: Case) -> Pieces:
    """One process, a thread for each device."""
    changed(case, DEFAULTS["dp"])
    if not is_accelerated(case):
        raise NoProgramError(
            "torch's DataParallel does nothing on a CPU: what was measured is a reference of its"
            " algorithm, and no program of torch's"
        )
    narrow = case.precision in {"bf16-amp", "fp16-amp"}
    inner = "InAutocast(model)" if narrow else "model"
    return Pieces(
        wrap=[f"module = nn.DataParallel({inner}, device_ids=list(range(DEVICES)))"],
        casts_within=narrow,
    )


def ddp(case: Case) -> Pieces:
    """A replica for each device."""
    options = changed(case, DEFAULTS["ddp"])
    if options.get("comm_hook") == "hierarchical":
        raise NoProgramError(OWN_HOOK)
    if "comm_hook" in options or "local_sgd_period" in options:
        raise NoProgramError(LOSSY)
    wrap = []
    if options.pop("sync_batchnorm", False):
        wrap.append("model = nn.SyncBatchNorm.convert_sync_batchnorm(model)")
    notes = []
    if options.pop("broadcast_buffers", True) is False:
        options["forward_sync_buffers"] = False
        notes.append("Before torch had forward_sync_buffers, it was called broadcast_buffers.")
    return Pieces(
        imports=[DDP],
        wrap=[*wrap, *_ddp(case, options)],
        region="module.no_sync()",
        notes=notes,
    )


def _ddp(case: Case, options: Mapping[str, Any]) -> list[str]:
    places: dict[str, Any] = {"device_ids": Code("[local_rank]")} if is_accelerated(case) else {}
    return assign("module", "DistributedDataParallel", "model", **places, **options)


def zero(case: Case) -> Pieces:
    """DDP, whose optimizer keeps a share of its state on each device."""
    options = changed(case, DEFAULTS["zero"])
    made = assign(
        "optimizer",
        "ZeroRedundancyOptimizer",
        "model.parameters()",
        optimizer_class=Code(optimizer_class(case)),
        **options,
        **optimizer_arguments(case),
    )
    return Pieces(
        imports=[DDP, "from torch.distributed.optim import ZeroRedundancyOptimizer"],
        wrap=_ddp(case, {}),
        optimizer=made,
        region="module.no_sync()",
    )


def deepspeed(case: Case) -> Pieces:
    """DeepSpeed's engine, which owns backward and step."""
    options = changed(case, DEFAULTS["deepspeed"])
    zero: dict[str, Any] = {"stage": case.options.get("stage", 0), **options}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": case.per_device_batch,
        "gradient_accumulation_steps": case.accumulation_steps,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
    }
    if zero.pop("offload_optimizer", "none") != "none":
        zero["offload_optimizer"] = {"device": options["offload_optimizer"]}
        config["zero_force_ds_cpu_optimizer"] = False
    if case.precision == "bf16-amp":
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    wrap = ["config = {"]
    wrap += [f"    {name!r}: {value!r}," for name, value in config.items()]
    wrap += ["}"]
    return Pieces(
        imports=["import deepspeed  # pip install deepspeed"],
        wrap=wrap,
        optimizer=[
            f"optimizer = {_torch_optimizer(case, 'model.parameters()')}",
            "module, optimizer, *_ = deepspeed.initialize(",
            "    model=model,",
            "    model_parameters=list(model.parameters()),",
            "    optimizer=optimizer,",
            "    config=config,",
            "    dist_init_required=False,",
            ")",
        ],
        owns_step=True,
    )


def _torch_optimizer(case: Case, parameters: str) -> str:
    return call(optimizer_class(case), parameters, **optimizer_arguments(case))


def plain_optimizer(case: Case) -> list[str]:
    """Torch's own over the parameters of what forward is called on."""
    return [f"optimizer = {_torch_optimizer(case, 'module.parameters()')}"]


WRAPPERS: dict[str, Callable[[Case], Pieces]] = {
    "single": single,
    "dp": dp,
    "ddp": ddp,
    "zero": zero,
    "deepspeed": deepspeed,
    "fsdp": sharded.fsdp,
    "fsdp1": sharded.fsdp1,
}


def pieces_of(case: Case) -> Pieces:
    """What the case's strategy adds to a program.

    Raises:
        NoProgramError: there is none for it.
    """
    if case.strategy not in WRAPPERS:
        raise NoProgramError(f"no program is made for the strategy {case.strategy}")
    return WRAPPERS[case.strategy](case)
