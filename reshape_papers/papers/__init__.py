"""Holds our results of the papers' experiments, and writes the tables of docs/papers.md from them."""
