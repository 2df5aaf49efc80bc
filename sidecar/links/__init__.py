"""Connects the sidecar to its coordinator and to its shim."""
