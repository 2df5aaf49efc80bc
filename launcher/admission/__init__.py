"""Injects shim and sidecar into pods: the injection, the admission webhook, and its certificates."""
