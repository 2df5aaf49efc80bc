"""Runs launches as pods of a Kubernetes cluster."""
