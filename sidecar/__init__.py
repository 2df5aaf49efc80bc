"""What lives beside a training process; imports nothing of the other packages."""
