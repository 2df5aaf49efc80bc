"""Runs the tasks of a Slaml as jobs, one after another, and tells how it stands."""
