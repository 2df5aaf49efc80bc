"""One module or package per scheduling system; independent of each other, composed by the engine."""
