"""A trainer that fails in its first line."""

raise ValueError("no such dataset: cifar-11")
