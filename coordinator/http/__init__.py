"""The coordinator's HTTP API."""
