"""Filter expressions: a few words of Python's syntax over the fields of a case.

``strategy == ddp and world_size <= 2``, ``workload in (resnet152, transformer)``,
``options.bucket_cap_mb == 25``, ``env.NCCL_ALGO == Ring``. Words that are no field are text, so
quotes are optional; a field that a case does not have compares as null. Nothing is evaluated as
code.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping, Set
from typing import Any

from bench.errors import FilterError, did_you_mean, one_line
from bench.plan.case import Case

FIELDS = frozenset(Case.__struct_fields__)
MAPPINGS = frozenset({"options", "workload_options", "data_options", "env"})

MAX_DEPTH = 100
"""Of operations within each other."""

Value = Callable[[Case], Any]
Known = Mapping[str, Set[str]]
"""For each of ``MAPPINGS``, the entries that some case may have."""

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
CONSTANTS = {"true": True, "false": False, "null": None, "none": "none"}


DIGITS = "decimal literal"
"""What Python says of a word that begins with a digit, whatever else."""


def compile_filter(expression: str, known: Known | None = None) -> Callable[[Case], bool]:
    """Turn an expression into a test of one case.

    Args:
        expression: to read.
        known: options that it may ask for; None for any.

    Raises:
        FilterError: it is not such an expression, compares two things of which none is a field, or
            asks for an option that nothing has.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of a parser that takes it for a program
            tree = ast.parse(expression.strip(), mode="eval")
        if _depth(tree) > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        test = _test(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        quotes = (
            ", or link == '1gbit' with quotes around such a word" if DIGITS in str(reason) else ""
        )
        raise FilterError(
            f"filter '{one_line(expression, limit=200)}' cannot be read: {reason}; write it like: "
            f"strategy == ddp and world_size <= 2{quotes}"
        ) from error
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=mapping), attr=entry) if (
                known is not None and mapping in MAPPINGS and entry not in known[mapping]
            ):
                what = "sets a variable" if mapping == "env" else "has an option"
                raise FilterError(
                    f"filter '{one_line(expression, limit=200)}': nothing here {what} "
                    f"'{entry}'{did_you_mean(entry, known[mapping])}"
                )
    return lambda case: bool(test(case))


def _depth(tree: ast.AST) -> int:
    """Nodes within each other, counted without recursion."""
    depth, level = 0, [tree]
    while level:
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _test(node: ast.expr) -> Value:
    """What ``and``, ``or`` and ``not`` may join: never a bare word, which would always be true."""
    is_test = isinstance(node, ast.BoolOp | ast.Compare) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )
    if not is_test:
        word = ast.unparse(node)
        raise ValueError(f"'{word}' compares nothing")
    return _value(node)


def _value(node: ast.expr) -> Value:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            tests = [_test(value) for value in values]
            return lambda case: all(test(case) for test in tests)
        case ast.BoolOp(op=ast.Or(), values=values):
            tests = [_test(value) for value in values]
            return lambda case: any(test(case) for test in tests)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            test = _test(operand)
            return lambda case: not test(case)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return lambda _: -number
        case ast.Compare():
            return _comparison(node)
        case ast.Constant(value=str() | int() | float() | bool() | None as constant):
            return lambda _: constant
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            items = [_value(element) for element in elements]
            return lambda case: [item(case) for item in items]
        case ast.Name() | ast.Attribute() | ast.BinOp():
            return _word(node)
    raise ValueError(f"'{ast.unparse(node)}' is not allowed here")


def _comparison(node: ast.Compare) -> Value:
    sides = [node.left, *node.comparators]
    if not any(_is_field(side) for side in sides):
        name = ast.unparse(node.left)
        raise FilterError(
            f"filter '{ast.unparse(node)}': '{name}' is no field of a case"
            f"{did_you_mean(name, FIELDS - {'id'})}"
        )
    values = [_value(side) for side in sides]
    if any(_is_variable(side) for side in sides):  # whose values are text, such as "8" or "true"
        values = [_as_variable(value) for value in values]
    tests = [COMPARISONS.get(type(op)) for op in node.ops]
    if None in tests:
        raise ValueError("only == != < <= > >= in, not in compare")

    def compare(case: Case) -> bool:
        seen = [value(case) for value in values]
        try:
            return all(
                test is not None and test(left, right)
                for test, left, right in zip(tests, seen, seen[1:], strict=False)
            )
        except TypeError:  # such as null < 25, or text against a number
            return False

    return compare


def _is_field(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name):
            return name in FIELDS
        case ast.Attribute(value=ast.Name(id=name)):
            return name in MAPPINGS
    return False


def _is_variable(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and _is_field(node) and ast.unparse(node.value) == "env"


def _as_variable(value: Value) -> Value:
    """The same value as an environment variable has it, whole numbers as numbers."""

    def plain(found: Any) -> Any:
        match found:
            case list():
                return [plain(one) for one in found]
            case bool():
                return str(found).lower()
            case str() if found.isdecimal():
                return int(found)
        return found

    return lambda case: plain(value(case))


def _word(node: ast.expr) -> Value:
    """A field, an entry of a field's mapping, or a bare word such as ``bf16-amp``."""
    match node:
        case ast.Name(id=name) if name in FIELDS:
            return operator.attrgetter(name)
        case ast.Attribute(value=ast.Name(id=name), attr=entry) if name in MAPPINGS:
            return lambda case: getattr(case, name).get(entry)
    word = ast.unparse(node).replace(" ", "")
    constant = CONSTANTS.get(word, word)
    return lambda _: constant


def matching(expression: str | None, known: Known | None = None) -> Callable[[Case], bool]:
    """The test of an expression; without one, every case matches. As ``compile_filter``."""
    return compile_filter(expression, known) if expression else lambda _: True
