"""`reshape` and `python -m reshape`: imports little at first, so that Ctrl-C then prints no traceback."""

import sys

INTERRUPTED = 130  # 128 + SIGINT, as `reshape.output.terminal` has it, which is not read yet


def main() -> None:
    """Run the `reshape` command, and exit. Ctrl-C while its modules are read ends it without a traceback."""
    try:
        from reshape.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
