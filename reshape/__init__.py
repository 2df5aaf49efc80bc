"""The front door: the `reshape` command, the Python client, all services in one process."""

__version__ = "0.1.0"
