"""Lets a training script save on SIGTERM and resume; each module can be used alone.

`plain` needs the standard library only, `keras` needs Keras 3. Nothing is imported here, so that a script loads only
what it uses.
"""
