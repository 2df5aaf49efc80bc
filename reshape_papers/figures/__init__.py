"""Builds the figures of the four papers as charts: values that a plotting library draws."""
