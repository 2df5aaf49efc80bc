"""Keeps what was measured of nodes and jobs from outside: by this machine's kernel, or by a Prometheus."""
