"""What a training script may use to save on SIGTERM and to resume."""
