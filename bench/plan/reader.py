"""Typed access to the plain data of a suite file, with errors that say where."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from bench.errors import SuiteError, did_you_mean
from bench.plan.fields import Data, Settings, Text
from bench.plan.variables import SET_OUTSIDE, refusal

MAX_NAME = 80
MAX_ENVIRONMENTS = 1000
"""Combinations of variables: more would not be run, and could fill the memory."""
SETTINGS = {field.name: field.type for field in msgspec.structs.fields(Settings)}


class Reader:
    """Typed access to plain data, with errors that say where."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, message: str, path: str) -> SuiteError:
        """What is wrong with the file, and where."""
        return SuiteError(message, source=self.source, path=path)

    def mapping(
        self, value: Any, path: str, known: frozenset[str] | Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """A mapping with string keys, all of them known (None: any)."""
        if not isinstance(value, dict):
            raise self.fail(f"must be a mapping of names to values, not {_kind(value)}", path)
        for key in value:
            if not isinstance(key, str):
                raise self.fail(f"the key {key!r} is not text", path)
            if known is not None and key not in known:
                raise self.fail(f"unknown key '{key}'{did_you_mean(key, known)}", path)
        return value

    def items(self, value: Any, path: str) -> list[Any]:
        """A list with something in it."""
        if value is None:
            raise self.fail("is missing", path)
        if not isinstance(value, list):
            raise self.fail(f"must be a list, not {_kind(value)}", path)
        if not value:
            raise self.fail("is empty: there is nothing to run", path)
        return value

    def value(self, value: Any, kind: Any, path: str) -> Any:
        """A value of the type given."""
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            self.mapping(value, path, frozenset(kind.__struct_fields__))
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            message, _, inner = str(error).partition(" - at `$")
            choice = words_of(kind)
            if isinstance(value, str) and choice:
                message = f"invalid value '{value}'{did_you_mean(value, choice)}"
            raise self.fail(
                f"{message}, got {value!r}" if not choice else message, path + inner.rstrip("`")
            ) from error

    def name(self, value: Any) -> str:
        """The suite's name, which titles pages and begins the names of folders."""
        name: str = self.value(value, str, "name")
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise self.fail(f"must be 1 to {MAX_NAME} printable characters", "name")
        return name

    def axes(self, given: dict[str, Any], path: str) -> dict[str, list[Any]]:
        """Every setting named, as a list of checked values."""
        axes: dict[str, list[Any]] = {}
        for name, value in given.items():
            where = f"{path}.{name}"
            if name == "env":
                axes[name] = self.environments(value, where)
            elif name == "data":
                axes[name] = self.data(value, where)
            elif isinstance(value, list):
                axes[name] = [
                    self.value(item, SETTINGS[name], f"{where}[{index}]")
                    for index, item in enumerate(self.items(value, where))
                ]
            else:
                axes[name] = [self.value(value, SETTINGS[name], where)]
        return axes

    def environments(self, given: Any, path: str) -> list[dict[str, str]]:
        """Every combination of the variables' values; null leaves a variable as it is.

        A list of such mappings lines up the combinations of each.
        """
        found: list[dict[str, str]] = []
        for index, one in enumerate(
            self.items(given, path) if isinstance(given, list) else [given]
        ):
            where = f"{path}[{index}]" if isinstance(given, list) else path
            choices = {
                name: self.variable(name, values, f"{where}.{name}")
                for name, values in self.mapping(one, where, None).items()
            }
            if math.prod(map(len, choices.values())) > MAX_ENVIRONMENTS:
                raise self.fail(f"gives more than {MAX_ENVIRONMENTS} combinations", where)
            for chosen in itertools.product(*choices.values()):
                pairs = zip(choices, chosen, strict=True)
                found.append({name: value for name, value in pairs if value is not None})
        return found

    def data(self, given: Any, path: str) -> list[Data]:
        """Every combination of the options of the sources named, none of them looked at."""
        named = given if isinstance(given, list) else [given]
        found: list[Data] = []
        for index, (name, axes) in enumerate(self.named(named, path)):
            if math.prod(map(len, axes.values())) > MAX_ENVIRONMENTS:
                where = f"{path}[{index}]" if isinstance(given, list) else path
                raise self.fail(f"gives more than {MAX_ENVIRONMENTS} combinations", where)
            chosen = (
                dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
            )
            found += [{name: options} if options else name for options in chosen]
        return found

    def variable(self, name: str, values: Any, path: str) -> list[str | None]:
        """The values of one variable, as text."""
        self.value({name: ""}, SETTINGS["env"], path.removesuffix(f".{name}"))
        reason = refusal(name)
        if reason is not None:
            raise self.fail(reason, path)
        found: list[str | None] = [
            self.value(str(value) if type(value) is int else value, Text | None, path)
            for value in (self.items(values, path) if isinstance(values, list) else [values])
        ]
        if any("/" in value or "\\" in value for value in found if value):
            raise self.fail(f"names a file, which no suite may do; {SET_OUTSIDE}", path)
        return found

    def named(self, value: Any, path: str) -> tuple[tuple[str, dict[str, list[Any]]], ...]:
        """A list of names, or of one-entry mappings from a name to its options."""
        found: list[tuple[str, dict[str, list[Any]]]] = []
        for index, item in enumerate(self.items(value, path)):
            where = f"{path}[{index}]"
            if isinstance(item, str):
                found.append((item, {}))
                continue
            mapping = self.mapping(item, where, None)
            if len(mapping) != 1:
                raise self.fail("must be a name, or one name with its options", where)
            ((name, options),) = mapping.items()
            if options is None:
                options = {}
            options = self.mapping(options, f"{where}.{name}", None)
            found.append(
                (
                    name,
                    {
                        key: self.items(setting, f"{where}.{name}.{key}")
                        if isinstance(setting, list)
                        else [setting]
                        for key, setting in options.items()
                    },
                )
            )
        return tuple(found)


def words_of(kind: Any) -> list[str]:
    """The words that a Literal type allows."""
    schema = msgspec.json.schema(kind)
    choices = [schema, *schema.get("anyOf", ())]
    return [word for choice in choices for word in choice.get("enum", ()) if isinstance(word, str)]


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", type(None): "nothing"}
    return names.get(type(value), f"{value!r}")
