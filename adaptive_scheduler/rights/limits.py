"""Says which limit of `shares.yaml` keeps an owner from having more GPUs, whoever idles.

Asked by `rights.py` before a start, by the operators' policy before it grows a job, and by the coordinator when a count
is requested. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from adaptive_scheduler.candidates import gpus
from adaptive_scheduler.shares import JobOwner, Shares

LIMIT = "rights.limit"
BORROW = "rights.borrow"
USER_LIMIT = "rights.user_limit"
BUDGET = "rights.budget"
"""Algorithms of a Hold, by which limit binds."""


class BindingLimit(NamedTuple):
    """A limit that is reached: the algorithm of a Hold, and words such as `queue nlp has 3 of at most 4 GPUs`."""

    algorithm: str
    words: str


def owner_in_words(shares: Shares, owner: JobOwner) -> str:
    """Return words for an owner: the user's name, or whose jobs these are."""
    is_one = shares.queue(owner.queue).owners == "shared"
    return owner.user or (f"the jobs of queue {owner.queue}" if is_one else "the jobs without an owner")


def names_counted(shares: Shares, owner: JobOwner) -> tuple[JobOwner | str, ...]:
    """Return in whose GPUs those of an owner count: its own, its queue's, and those of queues above with a limit."""
    return (owner, owner.queue, *shares.limiting_parents(owner.queue))


def count_held(shares: Shares, held: Iterable[tuple[JobOwner, int]]) -> Counter[JobOwner | str]:
    """Return the GPUs of owners, queues and those above. `held`: owners with GPUs, one job's or more."""
    found = Counter[JobOwner | str]()
    for owner, count in held:
        for name in names_counted(shares, owner):
            found[name] += count
    return found


def most_gpus_of(shares: Shares, owner: JobOwner) -> float:
    """Return the most GPUs that an owner may ever have; infinite without a limit."""
    queue = shares.queue(owner.queue)
    of_parents = [shares.queue(parent).most_together for parent in shares.limiting_parents(owner.queue)]
    return min(queue.most, *of_parents, math.inf if queue.user_limit is None else queue.user_limit)


def binding_limit(
    shares: Shares, owner: JobOwner, held: Mapping[JobOwner | str, int], more: int
) -> BindingLimit | None:
    """Return the limit that `more` GPUs for an owner would exceed, None if there is none. `held`: without these, as of
    `count_held`."""
    queue = shares.queue(owner.queue)
    queue_has = held.get(owner.queue, 0)
    owner_has = held.get(owner, 0)
    for parent in shares.limiting_parents(owner.queue):
        limit_of_parent = shares.queue(parent).limit
        parent_has = held.get(parent, 0)
        if limit_of_parent is not None and parent_has + more > limit_of_parent:
            words = (
                f"queue {owner.queue} is part of {parent}, which has {parent_has} of at most {gpus(limit_of_parent)}"
            )
            return BindingLimit(LIMIT, words)
    if queue.limit is not None and queue_has + more > queue.limit:
        return BindingLimit(LIMIT, f"queue {owner.queue} has {queue_has} of at most {gpus(queue.limit)}")
    if queue_has + more > queue.most:
        has = f"has {gpus(queue_has)} of the {queue.guarantee_in_words} that it is guaranteed"
        return BindingLimit(BORROW, f"queue {owner.queue} may not borrow, and {has}")
    if queue.user_limit is not None and owner_has + more > queue.user_limit:
        who = f"{owner_in_words(shares, owner)} in queue {owner.queue}"
        return BindingLimit(USER_LIMIT, f"{who} has {owner_has} of at most {gpus(queue.user_limit)}")
    return None
