"""The front door: the `reshape` command, the Python client, all services in one process."""
