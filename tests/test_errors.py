from __future__ import annotations

from bench.errors import in_words


def test_what_a_library_does_not_say_is_said() -> None:
    error = RuntimeError("the store has failed")
    error.__cause__ = OSError("Failed to init uv loop")
    assert in_words(error) == (
        "RuntimeError: the store has failed, since OSError: Failed to init uv loop: "
        "too many open files, or no memory for an event loop"
    )
    assert in_words(ValueError("plain")) == "ValueError: plain"
