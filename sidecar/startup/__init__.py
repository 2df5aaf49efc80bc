"""Prepares a launch: data sets, shim, logging, and a check that the command can start."""
