"""Holds what the papers' experiments came to here, and writes the tables of docs/papers.md from it."""
