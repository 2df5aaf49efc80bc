"""Reports of sidecars and node agents, and figures learned from them. Kept in memory."""
