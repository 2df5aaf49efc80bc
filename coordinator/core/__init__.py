"""Pure rules of the coordinator: states, records, intake, lifecycle, invariants."""
