"""What a strategy adds to a training program, as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from bench.errors import BenchError
from bench.plan.case import Case

NARROW = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
"""torch's names of types."""
LINE = 88
"""Characters of a line, before it is set in."""
SAFE = re.compile(r"[A-Za-z0-9_.,:=+/-]+")
"""What may stand in a program as it is: records come from anywhere, and programs are run."""
FUSED = (
    "torch's ShardedGradScaler fails with fused optimizers, since what it found has another shape"
    " than their steps: bench reshapes it, in bench/strategies/loss_scale.py; no program is made"
    " for it"
)
LOSSY = "trains on other gradients than one device would: no program is made for it"

OWN_HOOK = (
    "torch has no hook that reduces level by level: register_comm_hook takes that of"
    " bench/strategies/hierarchical.py, with its groups; no program is made for it"
)


class NoProgramError(BenchError):
    """A case that no program is made for, with the reason."""


class Code(str):
    """A value that stands in a program as it is, and not as the text that it is."""

    __slots__ = ()


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between programs, each a list of lines without indentation."""

    imports: list[str] = []
    wrap: list[str]
    """From ``model`` and ``device`` to ``module``, on which forward is called."""
    optimizer: list[str] | None = None
    """From ``model`` and ``module`` to ``optimizer``; None for torch's own, by the case."""
    region: str | None = None
    """A region in which backward leaves gradients where they are."""
    switch: str | None = None
    """Likewise, a statement before each micro-step, with ``synchronises`` in it."""
    scaler: str = "torch.amp.GradScaler(device.type)"
    unscales: bool = False
    """Whether the scaler must be asked for its own ``unscale_``."""
    casts_itself: bool = False
    """Whether the wrapper computes in a narrow type without autocast."""
    casts_within: bool = False
    """Whether autocast is entered in the model, since threads do not inherit it."""
    owns_step: bool = False
    """Whether ``module`` has ``backward`` and ``step`` of its own (an engine)."""
    notes: list[str] = []
    """What a reader must know, a sentence each."""


def call(name: str, *arguments: str, **named: Any) -> str:
    """A call as it stands in a program.

    >>> call("f", "x", a=1, b=Code("y"))
    'f(x, a=1, b=y)'
    """
    texts = [*arguments, *(f"{key}={literal(value)}" for key, value in named.items())]
    return f"{name}({', '.join(texts)})"


def assign(target: str, name: str, *arguments: str, **named: Any) -> list[str]:
    """A statement that keeps what a call gives, on as many lines as it needs."""
    line = f"{target} = {call(name, *arguments, **named)}"
    if len(line) <= LINE:
        return [line]
    texts = [*arguments, *(f"{key}={literal(value)}" for key, value in named.items())]
    return [f"{target} = {name}(", *(f"    {text}," for text in texts), ")"]


def literal(value: Any) -> str:
    """A plain value as Python writes it."""
    return str(value) if isinstance(value, Code) else repr(value)


def changed(case: Case, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a case that are not at their defaults.

    Raises:
        NoProgramError: it has one that is not known here.
    """
    unknown = [name for name in case.options if name not in defaults]
    if unknown:
        raise NoProgramError(f"no program is made for the option {unknown[0]} of {case.strategy}")
    return {name: value for name, value in case.options.items() if value != defaults[name]}


def optimizer_arguments(case: Case) -> dict[str, Any]:
    """Of torch's optimizer class: the measured kernels; the rate is the reader's."""
    kernels: dict[str, dict[str, Any]] = {
        "auto": {},
        "for-loop": {"foreach": False, "fused": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }
    plain: dict[str, Any] = {"lr": Code("LEARNING_RATE")}
    momentum = {"momentum": Code("MOMENTUM")} if case.optimizer == "sgd" else {}
    return plain | momentum | kernels[case.optimizer_kernels]


def optimizer_class(case: Case) -> str:
    """Torch's own."""
    return {"sgd": "torch.optim.SGD", "adamw": "torch.optim.AdamW"}[case.optimizer]


def safe(text: str) -> str:
    """Text that is a name, a number or a path, and so no code.

    Raises:
        NoProgramError: it is something else.
    """
    if not SAFE.fullmatch(text):
        raise NoProgramError(f"no program is made with {text!r} in it")
    return text


def number(value: Any) -> int:
    """A whole number.

    Raises:
        NoProgramError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise NoProgramError(f"no program is made with {value!r} for a number")
    return value


def torch_type(name: Any) -> Code:
    """Torch's name of a type.

    Raises:
        NoProgramError: it has none of that name.
    """
    if name not in NARROW:
        raise NoProgramError(f"no program is made with {name!r} for a type")
    return Code(NARROW[name])


def is_accelerated(case: Case) -> bool:
    """Whether the devices are no CPU."""
    return case.device != "cpu"
