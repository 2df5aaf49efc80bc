"""Needs a package that nobody installed."""

import sys

with open(sys.argv[1], "a") as file:
    file.write("1\n")

import a_package_that_nobody_installed
