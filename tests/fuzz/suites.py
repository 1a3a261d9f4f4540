"""Suite files: most of them well formed, the others spoiled in every way a file can be."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import strategies as st

from bench.plan.case import DeviceInfo, Machine
from bench.plan.suite import shipped_suites
from tests.fakes import EIGHT_GPUS, TWO_CORES
from tests.fuzz.odd import Draw, damaged, mutated

MACHINES = (
    TWO_CORES,
    EIGHT_GPUS,
    Machine(cores=()),
    Machine(cores=(0, 1, 2), core_speeds=(5_000_000, 4_900_000, 3_800_000)),
    Machine(
        cores=tuple(range(8)),
        accelerator="mps",
        devices=(DeviceInfo(name="an odd | one", visible_as="0"),),
        backends=("gloo",),
    ),
)
"""Fakes: a plan touches no device."""


def _options(**axes: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the options, each with a value or a list of values."""
    return st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(
                st.sampled_from(values),
                st.lists(st.sampled_from(values), min_size=1, max_size=3, unique_by=str),
            )
            for name, values in axes.items()
        },
    )


PRESETS = ("tiny", "cpu", "full")
MODELS = ("transformer", "resnet152", "embedding")
models = st.one_of(
    st.sampled_from([*MODELS, *(f"{name}:{preset}" for name in MODELS for preset in PRESETS)]),
    st.just("tests.fakes:PADDED:tiny"),
    st.builds(
        lambda options: {"transformer": options},
        _options(preset=list(PRESETS), layers=[1, 2, 12], tie_embeddings=[True, False]),
    ),
    st.builds(
        lambda options: {"embedding": options},
        _options(preset=list(PRESETS), sparse=[True, False], skew=[0, 1.05, 2], rows=[1, 1000]),
    ),
    st.builds(lambda options: {"resnet152:tiny": options}, _options(channels_last=[True, False])),
)
ways = st.one_of(
    st.sampled_from(["single", "dp", "ddp", "fsdp", "tests.fakes:SLEEPING"]),
    st.builds(
        lambda options: {"ddp": options or None},
        _options(
            bucket_cap_mb=[None, 1, 25, 100.5],
            static_graph=[True, False],
            gradient_as_bucket_view=[True, False],
            sync_batchnorm=[True, False],
            comm_hook=["none", "fp16", "bf16", "powersgd", "hierarchical"],
            local_sgd_period=[None, 1, 8],
        ),
    ),
    st.builds(
        lambda options: {"fsdp": options or None},
        _options(
            reshard_after_forward=[None, True, False, 2],
            mixed_precision=[None, "bf16"],
            shard_size=[None, 1, 2],
            wrap=["units", "root"],
        ),
    ),
    st.builds(lambda options: {"deepspeed": options}, _options(stage=[0, 1, 2, 3])),
)
FILTERS = (
    "strategy == ddp and world_size <= 2",
    "workload in (resnet152, transformer)",
    "options.bucket_cap_mb == 25 or not seed == 0",
    "precision != fp32 or world_size < 4",
    "workload_options.layers >= 1 or strategy == single",
    "world_size > 0",
)
settings = _options(
    device=["auto", "accelerator", "cpu", "cuda", "xpu"],
    backend=["auto", "gloo", "nccl", "mpi"],
    precision=["fp32", "tf32", "bf16-amp", "fp16-amp", "bf16"],
    compile=["none", "default"],
    optimizer=["auto", "sgd", "adamw"],
    accumulation_steps=[1, 2],
    data=["device", "host", {"stream": {"workers": [0, 1]}}, {"host": {"samples": 0}}],
    seed=[0, 1, 10**9],
)
efforts = st.fixed_dictionaries(
    {},
    optional={
        "launches": st.integers(1, 10_000),
        "max_launches": st.integers(1, 10_000),
        "launch_interval": st.floats(1e-6, 1.0),
        "warmup_steps": st.one_of(st.just("auto"), st.integers(0, 100)),
        "window": st.fixed_dictionaries(
            {},
            optional={
                "min_steps": st.integers(1, 100),
                "max_s": st.floats(1e-3, 1e6),
                "target_interval": st.floats(1e-6, 1.0),
            },
        ),
        "timeout_s": st.one_of(st.integers(1, 10**9), st.just(900.0)),
    },
)


LADDERS: tuple[list[dict[str, Any]], ...] = (
    [{"precision": "bf16"}, {"accumulation_steps": 4}],
    [{"activation_checkpointing": True, "env": {"NCCL_ALGO": "Ring"}}],
    [{"optimizer_kernels": "foreach"}, {"compile": "default", "compile_scope": "inside"}],
    [{"options": {"bucket_cap_mb": 3}}],
    [{"launches": 3}],
)


@st.composite
def blocks(draw: Draw) -> dict[str, Any]:
    sizes = st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=3, unique=True)
    block: dict[str, Any] = {
        "workloads": draw(st.lists(models, min_size=1, max_size=2)),
        "strategies": draw(st.lists(ways, min_size=1, max_size=3)),
        **draw(settings),
    }
    batch = draw(st.sampled_from(["preset", "weak", "strong"]))
    if batch == "weak":
        block["per_device_batch"] = draw(st.sampled_from([1, 2, [2, 4], 256]))
    elif batch == "strong":
        block |= {"scaling": "strong", "global_batch": draw(st.sampled_from([64, [64, 128]]))}
    if draw(st.booleans()):
        block["world_sizes"] = draw(st.one_of(st.just(2), sizes))
    if draw(st.integers(0, 3)) == 0:
        block["filter"] = draw(st.sampled_from(FILTERS))
    if draw(st.integers(0, 3)) == 0:
        block["twins"] = draw(st.booleans())
    if draw(st.integers(0, 9)) == 0:
        block["ladder"] = draw(st.sampled_from(LADDERS))
    return block


@st.composite
def documents(draw: Draw) -> dict[str, Any]:
    optional: dict[str, st.SearchStrategy[Any]] = {
        "name": st.sampled_from(["a", "my suite", "größe", "../x", "con", "a" * 80, ".."]),
        "description": st.text(alphabet=st.characters(exclude_categories=["C"]), max_size=20),
        "defaults": efforts,
        "cores_per_device": st.integers(1, 4),
        "budget_s": st.sampled_from([0, 60, 12.5, 1e9]),
    }
    head: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=optional))
    return head | {"matrix": draw(st.lists(blocks(), min_size=1, max_size=2))}


ANCHORED = (
    "defaults: &d {launches: 2, window: {max_s: 1e1}}\nmatrix:\n"
    "  - &b {workloads: [transformer:tiny], strategies: [single]}\n"
    "  - {<<: *b, seed: 1}\n  - {<<: [*b, *d], world_sizes: [2], seed: 2, launches: 2}\n",
    "defaults: {window: &w {<<: &v {max_s: 3}, max_s: 4}, launches: 1e0}\nmatrix:\n"
    "  - workloads: &m [transformer:tiny, embedding:tiny]\n    strategies: [single, ddp]\n"
    "    window: {<<: *w, min_steps: 5}\n  - {workloads: *m, strategies: [fsdp], window: *v}\n",
)
BOMBS = (
    "a: &a [x, x]\n"
    + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)
    ),
    "matrix: [{workloads: &a [*a], strategies: [ddp]}]",
    "x0: &x0 {a: 1}\n"
    + "".join(f"x{i + 1}: &x{i + 1} {{<<: [{', '.join([f'*x{i}'] * 9)}]}}\n" for i in range(12)),
    "[" * 3000,
    "{a: " * 3000,
    "- " * 3000,
    "matrix: [{workloads: [transformer:tiny], strategies: [ddp], seed: ["
    + ", ".join(map(str, range(2000)))
    + "], launches: ["
    + ", ".join(["1"] * 2000)
    + "]}]",
    "name: " + "1:" * 4000 + "1",
    "seed: 0x" + "f" * 9000,
    "matrix: [{workloads: [transformer:tiny], strategies: [ddp], filter: '"
    + "not " * 2000
    + "seed == 1'}]",
    "\ufeffmatrix: 1",
    "%TAG ! tag:yaml.org,2002:python/\n--- !object/apply:os.getpid []\n",
)


@st.composite
def texts(draw: Draw) -> str:
    """A suite file: six in ten as they should be, as far as one can say before planning it."""
    kind = draw(st.sampled_from(["good"] * 12 + ["mutated"] * 5 + ["damaged"] * 2 + ["given"]))
    if kind == "given":
        given = [*shipped_suites().values(), *ANCHORED]
        text = draw(st.sampled_from([*given, *BOMBS]))
        return draw(damaged(text)) if text in given and draw(st.booleans()) else text
    document = draw(documents())
    for _ in range(draw(st.integers(1, 2)) if kind == "mutated" else 0):
        document = mutated(draw, document)
    if draw(st.booleans()) or not _is_yaml(document):
        text = json.dumps(document, ensure_ascii=draw(st.booleans()))
    else:
        flow = draw(st.sampled_from([True, False, None]))
        text = yaml.safe_dump(document, default_flow_style=flow, sort_keys=False)
    return draw(damaged(text)) if kind == "damaged" else text


def _is_yaml(document: object) -> bool:
    """Whether PyYAML writes it, which half characters it does not."""
    return "\\ud" not in json.dumps(document)
