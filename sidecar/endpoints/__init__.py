"""The sidecar's HTTP server and its metrics."""
