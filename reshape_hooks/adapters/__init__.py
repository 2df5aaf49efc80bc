"""Make trainings elastic: scripts of PyTorch's libraries as they are, loops of one's own by three lines."""
