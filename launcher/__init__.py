"""Everything that starts processes and pods."""
