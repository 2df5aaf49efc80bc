"""Lets a training save when it is asked to stop, and resume where it was; each module can be used alone.

`plain` needs the standard library only, the others their framework. Nothing is imported here, so that a script loads
only what it uses.
"""

__version__ = "0.1.0"
