"""The model that stands in for the reader's, with what the case asks of it."""

from __future__ import annotations

from collections.abc import Iterator

from bench.plan.case import Case
from bench.report.snippet.pieces import NARROW, Pieces

MODEL = '''\
class Block(nn.Module):
    """A layer of your model: what is {what} at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), {norm}nn.ReLU(), nn.Linear(256, 64))

{forward}


class Model(nn.Module):
    """Yours, with its layers in ``blocks``."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def batches(rank, device):
    """Yours: the samples of one rank, others on each."""
    generator = torch.Generator(device).manual_seed(rank)
    while True:
        inputs = torch.randn({samples}, 64, generator=generator, device=device{dtype})
        yield inputs, torch.randint(10, (len(inputs),), generator=generator, device=device)


def loss_of(outputs, targets):
    """Yours: the mean over the samples."""
    return nn.functional.cross_entropy(outputs, targets)'''

FORWARD = """\
    def forward(self, inputs):
        return inputs + self.layers(inputs)"""
CHECKPOINTED = """\
    def forward(self, inputs):
        return checkpoint(self.compute, inputs, use_reentrant=False)

    def compute(self, inputs):
        return inputs + self.layers(inputs)"""
IN_AUTOCAST = '''\
class InAutocast(nn.Module):
    """Enters autocast in the thread of each replica, which does not inherit it."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        with torch.autocast("{device}", dtype={dtype}):
            return self.model(*inputs)'''


def model(case: Case, pieces: Pieces) -> Iterator[str]:
    """Definitions of the model, its batches and its loss, each a part of a program."""
    whats = {
        "sharded": case.strategy in {"fsdp", "fsdp1"},
        "checkpointed": case.activation_checkpointing,
        "compiled": case.compile != "none" and case.compile_scope == "blocks",
    }
    what = " and ".join(name for name, applies in whats.items() if applies)
    yield MODEL.format(
        what=what or "computed",
        norm="nn.BatchNorm1d(256), " if case.options.get("sync_batchnorm") else "",
        forward=CHECKPOINTED if case.activation_checkpointing else FORWARD,
        samples="PER_DEVICE_BATCH * DEVICES" if case.strategy == "dp" else "PER_DEVICE_BATCH",
        dtype=", dtype=torch.bfloat16" if case.precision == "bf16" else "",
    )
    if pieces.casts_within:
        yield IN_AUTOCAST.format(device=case.device, dtype=autocast_type(case))


def autocast_type(case: Case) -> str:
    """Torch's name of the type that autocast computes in."""
    return NARROW[case.precision.removesuffix("-amp")]
