"""Environment variables that a suite may set: those that tune torch and what it runs on.

A suite is data, whoever it comes from: nothing in it may load code or name a file. Nor may it set
what is the launcher's, or what would belie another setting.
"""

from __future__ import annotations

import re

TUNING = re.compile(
    r"(NCCL|RCCL|CCL|GLOO|UCX|FI|TORCH|PYTORCH|TORCHINDUCTOR|ATEN|CUDA|CUBLAS|CUBLASLT|CUDNN"
    r"|HIP|HSA|ROCR|XPU|OMP|KMP|GOMP|MKL|OPENBLAS|ONEDNN|DNNL|MALLOC|TCMALLOC|MIMALLOC)_.+"
)
"""Names of variables that change how fast training runs."""

SET_OUTSIDE = "set it around the whole run"
REFUSED = {
    r"(LOCAL_|GROUP_)?RANK|(LOCAL_|GROUP_)?WORLD_SIZE|ROLE_.*|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
    r"|BENCH_.*|TORCH_FR_DUMP_TEMP_FILE|TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    r"|PYTORCH_NVML_BASED_CUDA_CHECK": "is the launcher's, which sets it for every process",
    r"(CUDA|HIP|ROCR)_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK": (
        f"chooses devices, which follow from device and world_sizes; {SET_OUTSIDE}"
    ),
    r"(OMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR)_NUM_THREADS|MKL_DOMAIN_NUM_THREADS"
    r"|OMP_THREAD_LIMIT|OMP_DYNAMIC|KMP_HW_SUBSET": (
        "counts threads, which follow from cores_per_device"
    ),
    r"NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
    r"|(ONEDNN|DNNL)_DEFAULT_FPMATH_MODE": "changes the precision; use the field precision",
    r"TORCHDYNAMO_DISABLE|TORCH_COMPILE_DISABLE": "undoes compilation; use the field compile",
    r"(LD|DYLD)_.*|PYTHON.*|PATH|HOME|SHELL|TMPDIR|TMP|TEMP|CC|CXX|.*(PLUGIN|LIBRAR|INJECTION).*"
    r"|.*_(FILE|PATH|DIR|OUT|OUTPUT|HOME|DEST|PIPE)(_.*)?|TORCH_TRACE": (
        f"loads code, or names files, which no suite may do; {SET_OUTSIDE}"
    ),
}
"""Patterns of names, and what is wrong with them."""


def refusal(name: str) -> str | None:
    """Why a suite may not set an environment variable; None if it may.

    >>> refusal("MASTER_PORT")
    "is the launcher's, which sets it for every process"
    >>> refusal("NCCL_ALGO")
    """
    for names, reason in REFUSED.items():
        if re.fullmatch(names, name) is not None:
            return reason
    if TUNING.fullmatch(name) is None:
        return (
            "is no variable of torch's, nor of what it runs on (NCCL_, TORCH_, OMP_ ...); "
            f"{SET_OUTSIDE}"
        )
    return None
