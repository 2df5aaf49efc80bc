"""States of jobs and GPUs, and groups of them.

The first five job states and `reserved` / `in use` are those of SideCar scheduling (Tables II and III); `algorithms.md`
1.2 explains the others. Imports nothing, so that every module can use it.
"""

from __future__ import annotations

SUBMITTED = "submitted"  # in the queue, no GPU
INITIALIZING = "initializing"  # being launched; GPUs promised
INITIALIZED = "initialized"  # sidecar up, waits for its GPUs
RUNNING = "running"
ADJUSTING = "adjusting"  # a reshape is in progress
RESTARTING = "restarting"  # the trainer ended unexpectedly and is being restarted
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"

JOB_STATES = (SUBMITTED, INITIALIZING, INITIALIZED, RUNNING, ADJUSTING, RESTARTING, COMPLETED, FAILED, CANCELLED)
ENDED = frozenset({COMPLETED, FAILED, CANCELLED})
LAUNCHED = frozenset({INITIALIZING, INITIALIZED, RUNNING, ADJUSTING, RESTARTING})

IDLE = "idle"
RESERVED = "reserved"  # assigned to `job_id`, possibly still held by another job
IN_USE = "in use"
FAULTY = "faulty"

GPU_STATES = (IDLE, RESERVED, IN_USE, FAULTY)
