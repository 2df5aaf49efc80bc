"""The `reshape` command, the Python client and `reshape up`, which runs all services in one process."""

__version__ = "0.1.0"
