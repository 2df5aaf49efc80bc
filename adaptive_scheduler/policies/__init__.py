"""One file per scheduling system; they do not know each other, the engine composes them."""
