"""Published models as lists of layers: what their gradients weigh, and when they become ready.

Only counts: parameters, and multiplications with additions per sample (MACs). Backward is taken to
go from the last layer to the first, each for its share of MACs, of which norms, activations and
look-ups have none. The order is what matters; shares are rough.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import msgspec

from bench.errors import BenchError


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that belong together, in the order of forward."""

    name: str
    parameters: tuple[int, ...]
    """Elements of each."""
    macs: float = 0.0
    """Of one sample."""
    normalises: bool = False
    """Whether it is a batch norm."""
    looks_up: bool = False
    """Whether it is a table, whose dense gradient is first filled with zeros at any batch."""
    unit: str = ""
    """That FSDP would gather it with; empty for the root's."""
    ready_last: bool = False
    """Whether its gradient is whole at backward's end only: a weight used at both ends."""


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a published model is built; fields as its kind needs them."""

    kind: Literal["resnet", "gpt", "transformer-xl", "ncf", "even"]
    unit: str
    blocks: tuple[int, ...] = ()
    groups: int = 1
    width: int = 64
    image: int = 224
    classes: int = 1000
    layers: int | tuple[int, ...] = 0
    dim: int = 0
    inner: int = 0
    vocabulary: int = 0
    head: int = 0
    length: int = 0
    users: int = 0
    items: int = 0
    factors: int = 0
    parameters: int = 0
    """Of a model of which nothing else is known."""


def layers_of(made: Architecture) -> list[Layer]:
    """The layers of a model in the order of forward."""
    match made.kind:
        case "resnet":
            return _resnet(made)
        case "gpt":
            return _gpt(made)
        case "transformer-xl":
            return _transformer_xl(made)
        case "ncf":
            return _ncf(made)
        case "even":
            return _even(made)
    raise BenchError(f"no architecture {made.kind}")


PIECE, PIECES_OF_UNIT = 2**18, 16
"""Elements of each parameter of such a model: 1 MiB; and how many of them FSDP would gather."""


def _even(made: Architecture) -> list[Layer]:
    """Equal pieces, each for an equal share of the work; what is left over is the last one's."""
    whole, rest = divmod(made.parameters, PIECE)
    sizes = [PIECE] * whole + ([rest] if rest else [])
    return [
        Layer(
            name=f"piece {number}",
            parameters=(size,),
            macs=size,
            unit=f"unit {number // PIECES_OF_UNIT}",
        )
        for number, size in enumerate(sizes)
    ]


def _resnet(made: Architecture) -> list[Layer]:
    """Bottleneck blocks: He et al. 2016, Xie et al. 2017; stride in the 3 x 3, as torchvision."""
    layers: list[Layer] = []
    side = made.image // 2

    def conv(name: str, into: int, out: int, kernel: int, groups: int = 1) -> None:
        weights, unit = into // groups * out * kernel**2, name.rpartition(".")[0]
        layers.append(Layer(name=name, parameters=(weights,), macs=weights * side**2, unit=unit))
        norm = Layer(name=f"{name}.norm", parameters=(out, out), normalises=True, unit=unit)
        layers.append(norm)

    conv("stem", 3, 64, 7)
    side //= 2
    channels = 64
    for stage, blocks in enumerate(made.blocks):
        planes = 64 * 2**stage
        inner = planes * made.width // 64 * made.groups
        for block in range(blocks):
            name = f"{stage + 1}.{block}"
            conv(f"{name}.1", channels, inner, 1)
            side //= 2 if stage and not block else 1
            conv(f"{name}.2", inner, inner, 3, made.groups)
            conv(f"{name}.3", inner, 4 * planes, 1)
            if not block:
                conv(f"{name}.shortcut", channels, 4 * planes, 1)
            channels = 4 * planes
    weights = channels * made.classes
    return [*layers, Layer(name="fc", parameters=(weights, made.classes), macs=weights)]


def _gpt(made: Architecture) -> list[Layer]:
    """Pre-norm blocks without biases in linear layers, and a head that shares nothing."""
    assert isinstance(made.layers, int), "so many blocks"
    dim, length = made.dim, made.length
    table = made.vocabulary * dim
    layers = [
        Layer(name="tokens", parameters=(table,), looks_up=True),
        Layer(name="positions", parameters=(length * dim,), looks_up=True),
    ]
    for block in range(made.layers):
        attention = length * dim  # half of the square, twice: scores and values
        for name, weights, extra in (
            ("qkv", 3 * dim * dim, attention),
            ("out", dim * dim, 0),
            ("up", 4 * dim * dim, 0),
            ("down", 4 * dim * dim, 0),
        ):
            if name in {"qkv", "up"}:
                norm = Layer(name=f"{block}.norm {name}", parameters=(dim, dim), unit=str(block))
                layers.append(norm)
            macs = length * (weights + extra)
            layers.append(
                Layer(name=f"{block}.{name}", parameters=(weights,), macs=macs, unit=str(block))
            )
    layers.append(Layer(name="norm", parameters=(dim, dim)))
    return [*layers, Layer(name="head", parameters=(table,), macs=length * table)]


def _transformer_xl(made: Architecture) -> list[Layer]:
    """NVIDIA's base model: adaptive softmax whose weights are the embedding's own."""
    assert isinstance(made.layers, int), "so many blocks"
    dim, inner, length = made.dim, made.inner, made.length
    layers = [
        Layer(
            name="tokens",
            parameters=(made.vocabulary * dim,),
            looks_up=True,
            ready_last=True,
        )
    ]
    for block in range(made.layers):
        attention = 3 * 2 * length * dim  # over memory and segment: content, position, values
        layers += [
            Layer(
                name=f"{block}.attention",
                parameters=(3 * dim * dim, dim * dim, dim * dim, dim, dim),
                macs=length * (5 * dim * dim + attention),
                unit=str(block),
            ),
            Layer(
                name=f"{block}.feed forward",
                parameters=(dim * inner, inner, dim * inner, dim, dim, dim),
                macs=length * 2 * dim * inner,
                unit=str(block),
            ),
        ]
    softmax = Layer(
        name="softmax",
        parameters=(3 * dim, 3, made.vocabulary, dim, dim),
        macs=length * made.head * dim,
    )
    return [*layers, softmax]


def _ncf(made: Architecture) -> list[Layer]:
    """NeuMF: tables looked up first, so that their gradients come last."""
    assert not isinstance(made.layers, int), "widths of the perceptron"
    widths, half = made.layers, made.layers[0] // 2
    tables: Sequence[tuple[str, int]] = (
        ("users", made.users * made.factors),
        ("items", made.items * made.factors),
        ("users of perceptron", made.users * half),
        ("items of perceptron", made.items * half),
    )
    layers = [Layer(name=name, parameters=(size,), looks_up=True) for name, size in tables]
    for before, after in itertools.pairwise(widths):
        weights = before * after
        layers.append(Layer(name=f"{before} to {after}", parameters=(weights, after), macs=weights))
    last = widths[-1] + made.factors
    return [*layers, Layer(name="final", parameters=(last, 1), macs=last)]
