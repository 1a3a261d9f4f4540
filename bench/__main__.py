"""Entry of ``bench`` and ``python -m bench``.

Worker processes import the main module again when they start, so nothing heavy may be imported
here: the command line is loaded inside the function.
"""

import sys
from pathlib import Path


def main() -> int:
    """Run the command line; returns the exit code."""
    # A user's own modules may lie beside the suite, as under ``python -m bench``. Last on the path,
    # so that no file there hides a package.
    sys.path.append(str(Path.cwd()))
    from bench.cli import run_command_line  # noqa: PLC0415 - see the module docstring

    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
