"""The verbs that need no coordinator but the simulator: `simulate` and `paper`."""
