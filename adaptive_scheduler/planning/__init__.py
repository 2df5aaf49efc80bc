"""The planner: a few complete plans, each continued to the end of all known jobs, and the best of them. Pure."""
