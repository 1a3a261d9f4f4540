"""What a precision is in torch's types."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bench.plan.case import Precision

PARAMETERS: Mapping[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16-amp": torch.float32,
    "fp16-amp": torch.float32,
    "bf16": torch.bfloat16,
}
"""Of a model's parameters, and of what its optimizer keeps."""
AUTOCAST: Mapping[Precision, torch.dtype] = {
    "bf16-amp": torch.bfloat16,
    "fp16-amp": torch.float16,
}
"""Of what autocast narrows, where it is asked for."""
FACTORS: Mapping[Precision, torch.dtype] = {**PARAMETERS, **AUTOCAST}
"""Of the factors of matrix products. tf32 rounds them further, in the product itself."""
