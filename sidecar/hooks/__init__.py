"""Hooks with which a training script saves on SIGTERM and resumes; each module stands alone.

`plain` needs the standard library only, `keras` needs Keras 3. Nothing is imported here, so that a
script pays for what it uses.
"""
