"""Values and texts that somebody, somewhere, will put into a file."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

Draw = st.DrawFn

TEXTS = (
    "",
    " ",
    "-",
    "--",
    "1.",
    "===",
    "_under",
    "#1",
    "line\nbreak",
    "a\rb",
    "a\x00b",
    "a\x85b",
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;http://evil.example\x07link\x1b]8;;\x07",
    "\x9b31m",
    "\u202egnp.exe",
    "a\u200bb",
    "\u2066x\u2069",
    "\ufeff",
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "</td></table><h1>x",
    "<!-- results: end -->",
    "[a](javascript:alert(1))",
    "![p](http://evil.example/p.png)",
    "<http://evil.example>",
    "https://evil.example/?q=1",
    "_www.evil.example",
    "@someone and a@evil.example",
    "| a | b |",
    "`code` ``",
    "$x^2$ $$",
    "&lt;b&gt; &#x202e;",
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    "con",
    "a" * 3000,
    "ä" * 200,
    "😀 表 ع",
    "a\\",
    "~~x~~ **y**",
)
NUMBERS = (
    *(
        0,
        1,
        -1,
        2,
        3,
        7,
        10**9,
        10**12,
        2**31,
        2**63 - 1,
        2**63,
        10**19,
        -(10**19),
        10**30,
        10**400,
    ),
    *(0.0, -0.0, 0.5, -1.5, 1e-300, 1e-12, 1e9, 1e15, 1e18, 1e300, 1.7e308),
)

texts = st.one_of(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.text(max_size=8))
numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats(allow_nan=False))
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


values = st.one_of(
    scalars,
    scalars,
    st.lists(scalars, max_size=4),
    st.dictionaries(texts, scalars, max_size=3),
    st.sampled_from([5, 19, 20, 21, 60]).map(_deep),
    st.sampled_from([50, 400]).map(lambda count: list(range(1, count))),
)
"""Anything that JSON can say, finite."""


def mutated(draw: Draw, document: Any) -> Any:
    """A document made of dicts and lists with one place changed; the given one stays as it is.

    Parts of it may be our own constants, and what is drawn next must not hang on what was before.
    """
    if not isinstance(document, dict | list) or not document:
        return draw(values)
    document = copy.deepcopy(document)
    holder = document
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        child = holder[key]
        if not isinstance(child, dict | list) or not child or draw(st.integers(0, 3)) == 0:
            break
        holder = child
    _change(draw, holder, key)
    return document


def _change(draw: Draw, holder: Any, key: Any) -> None:
    match draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "wrap", "type"])):
        case "replace":
            holder[key] = draw(values)
        case "remove":
            del holder[key]
        case "add" if isinstance(holder, dict):
            holder[draw(st.one_of(texts, st.just(f"{key}s")))] = draw(values)
        case "add":
            holder.insert(key, draw(st.one_of(st.just(holder[key]), values)))
        case "wrap":
            holder[key] = [holder[key]]
        case "type":
            value = holder[key]
            holder[key] = value[:1] if isinstance(value, list | str) else str(value)


TOKENS = (
    *("*a", "&a ", "<<: *a", "<<: [*a, *a]", "!!binary x", "!!int ''", "!!float x", "!!set {a}"),
    *("!!python/object/apply:os.system ['true']", "!!timestamp x", "!!omap [a: 1]", "!<x> y"),
    *(
        "\t",
        "\x00",
        "\u202e",
        "\ud800",
        ": ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        '"',
        "'",
        "|\n",
        "\n",
    ),
    *("1e3", "1e999", ".inf", ".nan", "-.inf", "0x" + "f" * 50, "1:2:3", "2001-01-01", "~", "yes"),
    *(
        "%YAML 9.9\n",
        "---\n",
        "...\n",
        "? [a]\n: 1\n",
        "#",
        "@",
        "`",
        "[" * 60,
        "9" * 500,
        "\\ud800",
    ),
)


@st.composite
def damaged(draw: Draw, text: str) -> str:
    """Text with a few characters gone, doubled, or put in."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.integers(1, 12))
        match draw(st.sampled_from(["insert", "insert", "delete", "double", "cut"])):
            case "insert":
                text = text[:at] + draw(st.sampled_from(TOKENS)) + text[at:]
            case "delete":
                text = text[:at] + text[at + length :]
            case "double":
                text = text[:at] + text[at : at + 4 * length] + text[at:]
            case "cut":
                text = text[:at]
    return text
