"""The states of jobs and GPUs, in the seed's words, and the groups that code asks for.

Imports nothing, on purpose. The first five job states and `reserved` / `in use` are seed 004's
(Tables II and III); the others are ours (`algorithms.md` 1.2).
"""

from __future__ import annotations

SUBMITTED = "submitted"  # in the queue, no GPU
INITIALIZING = "initializing"  # being launched; GPUs promised
INITIALIZED = "initialized"  # sidecar up, waits for its GPUs
RUNNING = "running"
ADJUSTING = "adjusting"  # a reshape is under way
RESTARTING = "restarting"  # the trainer ended unasked and is being started again
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"

JOB_STATES = (SUBMITTED, INITIALIZING, INITIALIZED, RUNNING, ADJUSTING, RESTARTING, COMPLETED, FAILED, CANCELLED)
ENDED = frozenset({COMPLETED, FAILED, CANCELLED})
LAUNCHED = frozenset({INITIALIZING, INITIALIZED, RUNNING, ADJUSTING, RESTARTING})

IDLE = "idle"
RESERVED = "reserved"  # promised to `job_id`, perhaps still held by another job
IN_USE = "in use"
FAULTY = "faulty"

GPU_STATES = (IDLE, RESERVED, IN_USE, FAULTY)
