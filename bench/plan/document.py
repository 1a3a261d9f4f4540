"""YAML text -> plain data, within limits that are checked before memory is used.

Anchors, aliases and merges are allowed, and count as if they were written out: a small file that
would become a large one is refused while it is read. Tags that construct objects are refused by
PyYAML's safe loader, from which ours derives.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from bench.errors import SuiteError

MAX_BYTES = 1_000_000
"""Of a suite file."""
MAX_VALUES = 100_000
"""Of a suite, mappings, lists, keys and values alike, with aliases written out."""
MAX_DEPTH = 40
"""Lists and mappings within each other, aliases written out."""
MAX_TEXT = 10_000
"""Characters of one value."""
MAX_BITS = 1_000
"""Of a whole number, which is far beyond what any field accepts."""

EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")
"""A number that YAML 1.2 knows and 1.1, which PyYAML reads, takes for text: ``1e3``, ``1.5e3``."""
MERGE = "tag:yaml.org,2002:merge"
INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _RefusedError(yaml.MarkedYAMLError):
    """YAML that could be read, but is no suite of anyone's."""


def _refused(problem: str, mark: yaml.Mark | None) -> _RefusedError:
    return _RefusedError(problem=problem, problem_mark=mark)


class SuiteLoader(yaml.SafeLoader):
    """YAML's safe loader within limits, which also refuses a key that appears twice."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._level = 0
        self._nodes = 0
        self._sizes: dict[int, tuple[int, int]] = {}
        """Of each finished node: values and depth, with aliases written out."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Count before, and measure after; an alias costs what it stands for."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        self._nodes += 1
        self._check(self._nodes, self._level, mark)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        assert node is not None, "PyYAML composes a node or raises"
        if is_alias and id(node) not in self._sizes:
            raise _refused("an alias stands inside what it names", mark)
        if not is_alias:
            sizes = [self._sizes[id(child)] for child in _children(node)]
            size = 1 + sum(count for count, _ in sizes)
            depth = 1 + max((depth for _, depth in sizes), default=-1)
            self._check(size, depth, mark)
            self._sizes[id(node)] = (size, depth)
        return node

    def _check(self, values: int, depth: int, mark: yaml.Mark | None) -> None:
        if values > MAX_VALUES:
            raise _refused(f"more than {MAX_VALUES:,} values, aliases written out", mark)
        if depth > MAX_DEPTH:
            raise _refused(f"nested more than {MAX_DEPTH} deep", mark)

    def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
        """Text of bounded length that can be written again."""
        node = super().compose_scalar_node(anchor)
        if len(node.value) > MAX_TEXT:
            raise _refused(f"a value of more than {MAX_TEXT:,} characters", node.start_mark)
        if any("\ud800" <= letter <= "\udfff" for letter in node.value):
            try:  # JSON writes what lies beyond 16 bits as two halves
                node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError as error:
                raise _refused("half a character (a surrogate)", node.start_mark) from error
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Keys are seen here as they are written, before merges bring further ones."""
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _invalid("a key must be plain text", key.start_mark)
            if (key.tag, key.value) in seen and key.tag != MERGE:
                raise _invalid(f"the key {key.value!r} appears twice", key.start_mark)
            seen.add((key.tag, key.value))
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Bring in what is merged: a mapping's own keys come first, then those merged earlier.

        PyYAML tells keys apart by the identity of their text, which one letter shares with another.
        """
        found = {
            (key.tag, key.value): (key, value) for key, value in node.value if key.tag != MERGE
        }
        for source in [value for key, value in node.value if key.tag == MERGE]:
            for mapping in source.value if isinstance(source, yaml.SequenceNode) else [source]:
                if not isinstance(mapping, yaml.MappingNode):
                    raise _invalid("only mappings can be merged", source.start_mark)
                self.flatten_mapping(mapping)
                for key, value in mapping.value:
                    found.setdefault((key.tag, key.value), (key, value))
        node.value = list(found.values())

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """What PyYAML's constructors raise on odd values, with its place."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise _invalid(f"this is no {kind} ({error})", node.start_mark) from error

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """An integer of bounded length."""
        value: int = self.construct_yaml_int(node)
        if value.bit_length() > MAX_BITS:
            raise _refused("a number of more digits than anything needs", node.start_mark)
        return value

    def construct_number(self, node: yaml.ScalarNode) -> float:
        """A number with a point or an exponent; ``1e3`` serves where a whole one is wanted, too."""
        value: float = self.construct_yaml_float(node)
        is_whole = "." not in node.value and EXPONENT.fullmatch(node.value) is not None
        return int(value) if is_whole and value.is_integer() and abs(value) < 2**53 else value


SuiteLoader.add_constructor(INT, SuiteLoader.construct_whole)
SuiteLoader.add_constructor(FLOAT, SuiteLoader.construct_number)
SuiteLoader.add_implicit_resolver(FLOAT, re.compile(rf"^(?:{EXPONENT.pattern})$"), "-+0123456789")


def _children(node: yaml.Node) -> list[yaml.Node]:
    match node:
        case yaml.SequenceNode(value=items):
            return list(items)
        case yaml.MappingNode(value=pairs):
            return [part for pair in pairs for part in pair]
    return []


def _invalid(problem: str, mark: yaml.Mark | None) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


def read_document(text: str, source: str) -> Any:
    """The plain data of a suite file.

    Args:
        text: of the file.
        source: its name, for messages.

    Raises:
        SuiteError: it is no YAML, is empty, or is beyond a limit.
    """
    if len(text) > MAX_BYTES:
        raise SuiteError(f"is larger than {MAX_BYTES:,} bytes", source=source)
    try:
        document = yaml.load(text, Loader=SuiteLoader)  # noqa: S506 - derives from SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        is_refused = isinstance(error, _RefusedError)
        problem = f"{error.problem}" if is_refused else f"is not valid YAML: {error.problem}"
        raise SuiteError(problem, source=source, path=line) from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it cannot be read"
        raise SuiteError(f"is not valid YAML: {reason}", source=source) from error
    if document is None:
        raise SuiteError("is empty", source=source)
    return document
