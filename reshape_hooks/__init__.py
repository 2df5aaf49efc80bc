"""Lets a training save when it is asked to stop, and resume where it was; each module can be used alone.

`Elastic` is for custom loops; for libraries nothing needs to be called. `plain` needs only the standard library, the
other modules their framework. Nothing is imported here, so that a script loads only what it uses.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import `Elastic` when a script asks for it."""
    if name == "Elastic":
        from reshape_hooks.adapters.elastic import Elastic

        return Elastic
    raise AttributeError(f"module 'reshape_hooks' has no attribute {name!r}")
