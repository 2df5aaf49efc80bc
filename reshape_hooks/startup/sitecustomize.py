"""Loads the hooks of volcano-reshape into the interpreter of a training, whose script stays as it is.

The shim puts this folder, which holds nothing else, first on PYTHONPATH, so that Python imports this file before the
script (`site`, "sitecustomize"). Promises: what the environment would have imported under this name is imported after
it; a fault here never ends the script. Standard library only, Python 3.8 and newer.
"""

import importlib
import os
import sys


def load() -> None:
    """Make `reshape_hooks` importable, begin to wait for frameworks, and run the environment's own `sitecustomize`."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    try:
        import importlib.util

        package = os.path.dirname(here)
        spec = importlib.util.spec_from_file_location("reshape_hooks.on_import", os.path.join(package, "on_import.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.install(package)
    except Exception as fault:
        sys.stderr.write("reshape: the hooks were not loaded (%r); this training is left alone\n" % (fault,))
    del sys.modules["sitecustomize"]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as fault:
        if fault.name != "sitecustomize":
            raise


load()
