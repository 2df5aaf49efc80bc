"""Names jobs and launches: deterministically, safe as folder, Kubernetes object and host name.

The same job and launch number have the same name for ever, so a launch that is asked for twice, also by
another coordinator, is the same launch (`reliability.md` 7, row 26). Pure; imports nothing of ours.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

PREFIX = "volcano-reshape.io"
JOB = f"{PREFIX}/job"  # label of pods and Volcano Jobs: `job_name`
JOB_ID = f"{PREFIX}/job-id"  # annotation of pods: the `job_id` of their record, as it is
LAUNCH = f"{PREFIX}/launch"  # annotation of a pod: the Secret of its launch
INJECT = f"{PREFIX}/inject"  # label of queues, and of pods of jobs in other queues, that are to be reshaped
COUNTS = f"{PREFIX}/gpus"  # annotation of a user's object: on how many GPUs it can run
FIELDS = f"{PREFIX}/job"  # annotation of a user's object: further fields of its job document, as JSON
PLACEHOLDER = f"{PREFIX}/placeholder"  # label of pods that only hold a GPU: those that were asked for together
RECORD = f"{PREFIX}/record"  # annotation of a Volcano Job: the record of its launch, signed by the launcher
GATE = INJECT  # scheduling gate of pods that wait for their sidecar
NODE_GATE = f"{PREFIX}/node"  # scheduling gate of batch Jobs' and bare pods, until it is decided where they start
SUSPENDED = f"{PREFIX}/suspended"  # annotation of a batch Job that the launcher suspended, not its user
WAITS = "waits"  # value of the label JOB on such pods
CONTAINER = f"{PREFIX}/container"  # annotation of a pod: which container trains
SIDECAR = f"{PREFIX}/sidecar"  # annotation of a pod: `in-image` when its own image carries shim and sidecar
OWNER = f"{PREFIX}/owner"  # annotation of a Volcano Job: who made it, written by the webhook
OWNER_PROOF = f"{PREFIX}/owner-proof"  # annotation that proves the webhook wrote that
DEVICES = f"{PREFIX}/devices"  # annotation of a queue: `shared`, `recreate` or `pool`
MAKESPAN_WEIGHT = f"{PREFIX}/makespan-weight"  # annotation of a queue: a number, as in `shares.yaml`
VOLCANO_JOBS = "batch.volcano.sh/"  # API group of Volcano's Jobs; Kubernetes' own and those of others are a Job, too
BATCH_JOBS = "batch/"  # API group of Kubernetes' own
QUEUE_LABEL = "volcano.sh/queue-name"  # of pods of Volcano Jobs
QUEUE_NOTE = "scheduling.volcano.sh/queue-name"  # annotation of other pods, from which Volcano takes their queue
FETCHER = "reshape-dataset"  # the init container that fetches a data set, and the volume that it lies on
DATASET = "/dataset"  # where that volume is mounted

NAME_LENGTH = 253  # of objects that are named by subdomains
LABEL_LENGTH = 63  # DNS-1123 label, the shortest limit of all that carry the name
KEPT = 16_384  # names of jobs that are not worked out again
HASH_LENGTH = 8  # of base 32: 40 bits, counted only among jobs whose readable part is the same
LAUNCH_LENGTH = 10  # decimal digits
POD_SUFFIX = "-trainer-0"  # Volcano names a job's pods so, and takes none whose name is no label
SLUG_LENGTH = LABEL_LENGTH - HASH_LENGTH - LAUNCH_LENGTH - len("--l") - len(POD_SUFFIX)


@lru_cache(KEPT)  # asked for several times at each look at a job
def job_name(job_id: str, uid: str) -> str:
    """Return `<slug>-<hash>`: one name per job, the same for all its launches. Takes any strings."""
    return f"{_slug(job_id)}-{_hash(job_id, uid)}"


def launch_name(job_id: str, uid: str, launch: int) -> str:
    """Return `<slug>-<hash>-l<launch>`, always a DNS-1123 label that begins with a letter.

    `ValueError` for a negative launch number or one of more than ten digits.
    """
    if not 0 <= launch < 10**LAUNCH_LENGTH:
        raise ValueError(f"a launch number is 0 or more and has at most {LAUNCH_LENGTH} digits, not {launch}")
    return f"{job_name(job_id, uid)}-l{launch}"


def is_launch_of(job: str, name: str) -> bool:
    """True if `name` names a launch of the job whose `job_name` is `job`. A copied label alone does not suffice."""
    return re.fullmatch(f"{re.escape(job)}-l[0-9]{{1,{LAUNCH_LENGTH}}}", name) is not None


def is_made_by_launcher(job: Mapping[str, Any]) -> bool:
    """True if the launcher made this Volcano Job or batch Job, for a job document that a user inserted."""
    return is_launch_of(str((job["metadata"].get("labels") or {}).get(JOB)), str(job["metadata"]["name"]))


def may_be_launch_of(job_id: str, name: str) -> bool:
    """True if `name` may name a launch of a job with this id whose uid is no longer known."""
    return (
        re.fullmatch(f"{re.escape(_slug(job_id))}-[a-z2-7]{{{HASH_LENGTH}}}-l[0-9]{{1,{LAUNCH_LENGTH}}}", name)
        is not None
    )


def secret_of_pod(pod: str, random: str) -> str:
    """Return the name of the Secret that a user's pod waits for. `random`: eight hexadecimal digits."""
    return f"{pod[: NAME_LENGTH - 9].rstrip('.-')}-{random}"


def is_secret_of_pod(pod: str, secret: str) -> bool:
    """True if `secret` was made up for this pod, so that it names no other Secret of its namespace."""
    return bool(re.fullmatch("[0-9a-f]{8}", secret[-8:])) and secret == secret_of_pod(pod, secret[-8:])


def secret_prefix(metadata: Mapping[str, Any]) -> str:
    """Return what the Secret of a pod is named after: its name, or what that is to begin with, if it has none yet."""
    return str(metadata.get("name") or metadata.get("generateName") or "pod")


def member_of(pod: str) -> int | None:
    """Return the index that Volcano gave this pod within its task; None if its name ends in none."""
    found = re.search(r"-([0-9]{1,6})$", pod)
    return int(found[1]) if found else None


def _slug(job_id: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")
    if not slug[:1].isalpha():
        slug = f"job-{slug}"  # Volcano's service for a job must begin with a letter (DNS-1035)
    return slug[:SLUG_LENGTH].strip("-")


def _hash(job_id: str, uid: str) -> str:
    # JSON keeps ("a", "bc") apart from ("ab", "c") and takes lone surrogates, which UTF-8 does not.
    digest = hashlib.sha256(json.dumps([job_id, uid]).encode()).digest()
    return base64.b32encode(digest).decode().lower()[:HASH_LENGTH]
