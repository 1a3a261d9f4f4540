"""Entry of ``bench`` and ``python -m bench``.

Worker processes import the main module again when they start, so nothing heavy may be imported
here: the command line is loaded inside the function.
"""

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    from bench.cli import run_command_line  # noqa: PLC0415 - see the module docstring

    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
