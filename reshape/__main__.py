"""`python -m reshape` is the `reshape` command."""

from reshape.cli import main

if __name__ == "__main__":
    main()
