"""`python -m reshape` is the `reshape` command."""

from reshape.cli.main import main

if __name__ == "__main__":
    main()
