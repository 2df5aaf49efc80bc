"""A trainer that says it is done, at once."""

print("step=1", flush=True)  # noqa: T201
