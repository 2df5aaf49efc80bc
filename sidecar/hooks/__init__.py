"""What a training script may use to save on SIGTERM and to resume; each module stands alone.

`plain` needs the standard library only, `keras` needs Keras 3. Nothing is imported here, so that a
script pays for what it uses.
"""
