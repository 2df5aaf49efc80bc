"""Serves the sidecar's HTTP endpoints and metrics."""
