"""Long-running services of one machine or one cluster node: up, coordinator, node agent."""
