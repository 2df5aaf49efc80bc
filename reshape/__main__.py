"""The console scripts, and `python -m reshape`: imports little at first, so that Ctrl-C then prints no traceback."""

import importlib
import os
import sys
from types import ModuleType

INTERRUPTED = 130  # 128 + SIGINT, as `reshape.output.terminal` has it, which is not read yet


def main() -> None:
    """Run the `reshape` command, and exit."""
    _imported("reshape.cli.main").main()


def kubectl() -> None:
    """Run `kubectl reshape`, and exit."""
    _imported("reshape.cli.kubectl").main()


def complete() -> None:
    """Print the words that may follow, as kubectl asks for them."""
    _imported("reshape.cli.kubectl").complete()


def _imported(name: str) -> ModuleType:
    """Import a module; Ctrl-C meanwhile ends the process without a traceback."""
    _open_standard_files()
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _open_standard_files() -> None:
    """Give a closed standard stream (`>&-`) the null device: else the next file, as the store, takes its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


if __name__ == "__main__":
    main()
