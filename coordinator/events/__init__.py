"""Events for people and programs: recorder, log, stages of a reshape, metrics."""
