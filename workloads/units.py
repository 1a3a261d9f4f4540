"""Which modules of a model to shard one by one, where nobody says: its repeated blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Hold modules and do nothing of their own, as do classes made of them."""
STACK = 3
"""Blocks of one class in one container from which what holds them is no block itself."""


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Modules of a class that a model has several of, such as the layers of a transformer.

    A block has parameters and parts of its own; it is no container, no single layer, and lies in no
    other block. A module that itself holds a stack of blocks, as each of two towers does, is none.

    Returns:
        The blocks, in the model's order; none where nothing is repeated.
    """
    counts = Counter(type(module) for module in model.modules() if _may_be_block(module))
    kinds = {kind for kind, count in counts.items() if count > 1}
    blocks = list(_outermost(model, kinds, set()))
    found = Counter(map(type, blocks))
    return [block for block in blocks if found[type(block)] > 1]


def described(model: nn.Module, units: list[nn.Module]) -> str:
    """Units in words: how many of which class, and what share of the parameters is in them.

    >>> layer = lambda: nn.TransformerEncoderLayer(8, 2, 8)
    >>> model = nn.Sequential(layer(), layer())
    >>> described(model, repeated_blocks(model))
    '2 x TransformerEncoderLayer (0, 1), with 100% of the parameters'
    """
    if not units:
        return "none"
    names = {module: name for name, module in model.named_modules()}
    groups: dict[str, list[str]] = {}
    for unit in units:
        groups.setdefault(type(unit).__name__, []).append(names.get(unit, "?"))
    words = [f"{len(found)} x {kind} ({_ends(found)})" for kind, found in groups.items()]
    inside = {parameter for unit in units for parameter in unit.parameters()}
    total = sum(parameter.numel() for parameter in model.parameters())
    share = sum(parameter.numel() for parameter in inside) / total if total else 0.0
    return f"{' and '.join(words)}, with {share:.0%} of the parameters"


def _ends(names: list[str]) -> str:
    return ", ".join(names if len(names) < 3 else [names[0], "...", names[-1]])


def _may_be_block(module: nn.Module) -> bool:
    has_parts = any(True for _ in module.children())
    return (
        has_parts and not isinstance(module, CONTAINERS) and any(True for _ in module.parameters())
    )


def _outermost(
    module: nn.Module, kinds: set[type[nn.Module]], seen: set[nn.Module]
) -> Iterator[nn.Module]:
    for child in module.children():
        if child in seen:
            continue
        seen.add(child)
        if type(child) in kinds and _may_be_block(child) and not _holds_stack(child):
            yield child
        else:
            yield from _outermost(child, kinds, seen)


def _holds_stack(module: nn.Module) -> bool:
    """Whether a container in it holds several blocks of one class."""
    for inner in module.modules():
        if isinstance(inner, CONTAINERS):
            held = Counter(type(child) for child in inner.children() if _may_be_block(child))
            if held and max(held.values()) >= STACK:
                return True
    return False
