"""Adapters of the other ports: sidecars, platform of a cluster, archived logs, Prometheus, clock."""
