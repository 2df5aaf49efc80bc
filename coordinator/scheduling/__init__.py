"""The decision loop: intake, snapshot, decisions and their binding, Slamls, dependencies."""
