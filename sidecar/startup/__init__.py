"""Checks a command and installs the shim before a training starts."""
