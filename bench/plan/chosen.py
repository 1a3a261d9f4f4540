"""What a block of a suite names: workloads, strategies and data, each with its options chosen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.errors import BenchError, SuiteError, did_you_mean, one_line
from bench.plan.case import odd_value
from bench.plan.fields import Data
from bench.plan.inputs import Input, as_it_works, changed_of
from bench.plan.own import at_its_place
from bench.plan.places import locate
from bench.plan.reader import words_of
from bench.plan.registry import find_source, find_strategy, find_workload, split_reference
from bench.plan.suite import Block, Suite
from bench.strategies.base import Strategy
from workloads.base import Facts, Workload

Converted = TypeVar("Converted", bound=msgspec.Struct)


class Model(msgspec.Struct, frozen=True, eq=False):
    """A workload with one choice of its options."""

    workload: Workload
    name: str
    preset: str
    options: dict[str, Any]
    per_device_batch: int
    facts: Facts


class Way(msgspec.Struct, frozen=True, eq=False):
    """A strategy with one choice of its options."""

    strategy: Strategy
    name: str
    options: dict[str, Any]
    label: str


class Chosen:
    """What one block names. All that is wrong with it is a ``SuiteError``, at its place."""

    def __init__(self, suite: Suite, block: Block) -> None:
        self._suite = suite
        self._block = block
        self._inputs: dict[bytes, Input] = {}
        """Of each value of ``data``, which many cases share."""

    def error(self, message: str, path: str) -> SuiteError:
        """What is wrong at a place within the block."""
        return self._failed(message, self.at(path))

    def _failed(self, message: str, path: str) -> SuiteError:
        """Likewise, at a place within the file: unless the file is not what names workloads."""
        _, is_workload, rest = path.partition(".workloads[")
        if is_workload and self._suite.given_by is not None:
            path = rest.partition("]")[2].removeprefix(".")
            return SuiteError(message, source=self._suite.given_by, path=path)
        return SuiteError(message, source=self._suite.source, path=path)

    def at(self, path: str) -> str:
        """A place within the block, as one within the file."""
        return f"{self._block.path}.{path}"

    def strategies(self) -> Iterator[tuple[str, str, Strategy, dict[str, list[Any]]]]:
        """(path, name, strategy, axes of its options)."""
        for index, (name, axes) in enumerate(self._block.strategies):
            path = f"strategies[{index}]"
            try:
                yield path, name, find_strategy(name), axes
            except BenchError as error:
                raise self.error(str(error), path) from error

    def ways(self) -> list[Way]:
        """Every strategy with every choice of its options."""
        ways: list[Way] = []
        for path, name, strategy, axes in self.strategies():
            where = self.at(f"{path}.{name}")
            ways += [self.way(name, strategy, chosen, where) for chosen in choices(axes)]
        return ways

    def way(self, name: str, strategy: Strategy, given: dict[str, Any], path: str) -> Way:
        """A strategy with options.

        Args:
            name: that the suite gives it.
            strategy: of that name.
            given: its options, as far as they are given.
            path: of them within the file.
        """
        options = self._convert(given, strategy.options, name, path)
        label = _label(name, options.changed())
        return Way(strategy, name, msgspec.structs.asdict(options), label)

    def models(
        self, reference: str, axes: dict[str, list[Any]], device: str, path: str
    ) -> list[Model]:
        """A workload with every choice of its options.

        Args:
            reference: its name, or with a preset.
            axes: of its options.
            device: whose preset it has unless one is named.
            path: of it within the block.
        """
        name, named_preset = split_reference(reference)
        try:
            workload = find_workload(name)
        except BenchError as error:
            raise self.error(str(error), path) from error
        if named_preset is not None and "preset" in axes:
            raise self.error("names a preset twice", path)
        automatic = workload.default_presets.get(device, workload.default_presets[""])
        models: list[Model] = []
        for chosen in choices(axes):
            preset_name = named_preset or chosen.pop("preset", automatic)
            preset = workload.presets.get(preset_name) if isinstance(preset_name, str) else None
            if preset is None:
                hint = did_you_mean(str(preset_name), workload.presets)
                raise self.error(f"workload {name} has no preset '{preset_name}'{hint}", path)
            merged = msgspec.structs.asdict(preset.options) | chosen
            options = self._convert(merged, workload.options, name, self.at(f"{path}.{name}"))
            models.append(
                Model(
                    workload,
                    name,
                    preset_name,
                    msgspec.structs.asdict(options),
                    preset.per_device_batch,
                    self._facts(workload, options, path),
                )
            )
        return models

    def input_for(self, data: Data, facts: Facts) -> Input:
        """Where a model's batches come from, with what is there."""
        given = self._input(data)
        try:
            return given.looked_at(facts)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            message = f"{given.place} cannot be read as {given.source.name}: {why}"
            raise self.error(one_line(message), "data") from error

    def _input(self, data: Data) -> Input:
        key = msgspec.json.encode(data)
        if key not in self._inputs:
            self._inputs[key] = self._new_input(data)
        return self._inputs[key]

    def _new_input(self, data: Data) -> Input:
        ((name, given),) = data.items() if isinstance(data, dict) else [(data, {})]
        path = self.at("data")
        try:
            source = find_source(name)
            options = as_it_works(self._convert(given, source.options, name, f"{path}.{name}"))
            own = getattr(options, "path", None)
            folder = [Path(self._suite.folder)] if self._suite.folder is not None else []
            place = None if own is None else locate(own, folder)
        except SuiteError:
            raise
        except BenchError as error:
            raise self.error(str(error), "data") from error
        label = "" if name == "device" else _label(name, changed_of(options))
        return Input(source, options, label, place)

    def _facts(self, workload: Workload, options: Any, path: str) -> Facts:
        try:
            return workload.facts(options)
        except Exception as error:  # a user's own function
            message = f"the facts of {workload.name} fail: {at_its_place(error)}"
            raise self.error(message, path) from error

    def _convert(
        self, given: dict[str, Any], kind: type[Converted], owner: str, path: str
    ) -> Converted:
        known = kind.__struct_fields__
        for key, value in given.items():
            if key not in known:
                hint = did_you_mean(key, known) if known else ". It has none"
                raise self._failed(f"{owner} has no option '{key}'{hint}", path)
            problem = odd_value(value)
            if problem is not None:
                raise self._failed(problem, f"{path}.{key}")
        try:
            return msgspec.convert(given, kind)
        except msgspec.ValidationError as error:
            message, _, inner = str(error).partition(" - at `$")
            place = inner.rstrip("`")
            raise self._failed(_of_words(kind, given, place) or message, path + place) from error
        except Exception as error:  # a user's own check of the options
            raise self._failed(f"{type(error).__name__}: {error}", path) from error


def choices(axes: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """The product of axes, the last one named varying fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _label(name: str, changed: Mapping[str, Any]) -> str:
    texts = [f"{key}={_plain(value)}" for key, value in changed.items()]
    return f"{name}({', '.join(texts)})" if texts else name


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _of_words(kind: type[Any], given: Mapping[str, Any], place: str) -> str | None:
    """What is wrong with an option that takes one of some words; None for any other."""
    types = {f".{one.name}": one.type for one in msgspec.structs.fields(kind)}
    value = given.get(place.removeprefix("."))
    words = words_of(types[place]) if place in types else []
    return f"invalid value {value!r}{did_you_mean(str(value), words)}" if words else None
