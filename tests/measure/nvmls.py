"""A made-up ``pynvml``: functions that answer from a table, or say that they cannot."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class FakeNVMLError(Exception):
    """Whatever NVML complains of."""


class FakeNvml:
    """Stands for the module: ``nvml.answers["nvmlDeviceGetPowerUsage"] = lambda handle: 1000``.

    Handles are the UUIDs themselves. What is in no table raises NVML's error, as a driver does that
    does not support a call; what is in ``absent`` is not even there, as in an old package.
    """

    NVMLError = FakeNVMLError
    nvmlMemory_v2 = 0x02000028  # noqa: N815 - the module's own name
    NVML_FI_DEV_NVLINK_GET_SPEED = 164
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 197
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 198

    def __init__(self, *devices: str, **answers: Callable[..., Any]) -> None:
        self.devices = devices
        self.answers = answers
        self.absent: set[str] = set()
        self.fields: dict[int, int] = {}
        """By number: what each field's value is, as an unsigned long long."""
        self.opened = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the module's own name, as all below
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in self.devices:
            raise FakeNVMLError(uuid)
        return uuid

    def nvmlDeviceGetFieldValues(self, handle: str, wanted: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        del handle
        return [
            SimpleNamespace(
                nvmlReturn=0 if number in self.fields else 3,
                valueType=3,
                value=SimpleNamespace(ullVal=self.fields.get(number, 0)),
            )
            for number, _ in wanted
        ]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or name in self.absent:
            raise AttributeError(name)
        return self.answers.get(name, self._refuse)

    @staticmethod
    def _refuse(*arguments: Any) -> Any:
        raise FakeNVMLError(arguments)
