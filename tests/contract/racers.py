"""What the racing processes of the contract do: `python -m tests.contract.racers VERB URL …`.

Each prints what it was acknowledged, for the test to compare with what the store then holds.
"""

from __future__ import annotations

import json
import sys

from coordinator.errors import Conflict
from coordinator.ports import Store
from coordinator.stores.opening import open_store


def count(store: Store, attempts: int) -> int:
    """Compare-and-set one document so many times; how many were won."""
    wins = 0
    for _ in range(attempts):
        seen = store.get("jobs", "contested")
        assert seen is not None
        try:
            store.update("jobs", "contested", {"version": seen["version"]}, {"count": seen["count"] + 1})
        except Conflict:
            continue
        wins += 1
    return wins


def claim(store: Store, keys: int) -> dict[str, list[int]]:
    """Claim each key by an update and, apart from that, by an insert; those that were won."""
    won: dict[str, list[int]] = {"update": [], "insert": []}
    for key in range(keys):
        try:
            store.update("gpus", key, {"job_id": None}, {"job_id": "mine"})
            won["update"].append(key)
        except Conflict:
            pass
        try:
            store.insert("claims", {"_id": key})
            won["insert"].append(key)
        except Conflict:
            pass
    return won


def write(store: Store) -> None:
    """Insert for ever, and say each number once it is acknowledged."""
    number = 0
    while True:
        store.insert("jobs", {"_id": number, "filler": "x" * 500})
        say(number)
        number += 1


def submit(store: Store) -> None:
    store.insert("jobs", {"_id": "from elsewhere", "state": "submitted"})


def say(fact: object) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def main(verb: str, url: str, number: int) -> None:
    store = open_store(url)
    # Racers start together: imports take longer than a whole race.
    say("ready")
    sys.stdin.readline()
    result = {
        "count": lambda: count(store, number),
        "claim": lambda: claim(store, number),
        "write": lambda: write(store),
        "submit": lambda: submit(store),
    }[verb]()
    say(result)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
