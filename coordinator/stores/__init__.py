"""Adapters of the Store port."""
