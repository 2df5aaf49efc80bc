"""Shim, sidecar, node agent and hooks: the code that runs beside a training. Imports nothing of the other packages."""
