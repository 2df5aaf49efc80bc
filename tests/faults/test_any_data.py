"""Whatever people write into the store and ask of the API: the loop never stops, and no other job is touched.

The real coordinator with its HTTP edge, in process, on a fake clock. Rows of all tables are changed, added and deleted
at random, as by hand, and random requests are sent. One job is left alone and must train on as the same process.
"""

from __future__ import annotations

import json
import random
import string
from typing import Any, cast
from urllib.parse import quote

import pytest

from coordinator.api.services import Services
from coordinator.http.base import RETRY_AFTER_S
from coordinator.model import states as s
from coordinator.stores import rules
from tests.api.caller import Answer, Caller
from tests.depth import drawn
from tests.fakes.coordinator_api import serve
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

STEADY = "steady"  # whom nobody touches
TABLES = (
    "jobs", "jobs", "jobs", "gpus", "gpus", "nodes", "queues", "slamls", "launches", "readers", "decisions", "events",
    "heartbeats", "speed_profiles", "overheads", "accuracy_profiles", "observations", "predictions", "gpu_use",
)  # fmt: skip  # but terms, which say who acts
NONSENSE: tuple[Any, ...] = (
    None, "", "x", "a.b", "{{ 1 }}", "../..", "\u202e😀", "n1", s.RUNNING, s.SUBMITTED, s.COMPLETED, True, False, 0, 1,
    -1, 2, 1.5, 1e300, 2**62, [], [1, 2], [{}], ["gpu-3"], {}, {"a": {"b": []}}, {"kind": "start", "generation": 9},
)  # fmt: skip
METHODS = ("GET", "GET", "GET", "POST", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")
PATHS = (
    "/v1/jobs", "/v1/jobs?all=true", "/v1/jobs/{}", "/v1/jobs/{}/reshape", "/v1/jobs/{}/suspend", "/v1/jobs/{}/resume",
    "/v1/jobs/{}/remove", "/v1/jobs/{}/rerun", "/v1/jobs/{}/logs", "/v1/policy", "/v1/gpus", "/v1/nodes",
    "/v1/nodes/{}", "/v1/snapshot", "/v1/journal", "/v1/decisions", "/v1/decisions?job_id={}&limit={}",
    "/v1/decisions/{}", "/v1/profiles/{}", "/v1/heartbeats", "/v1/wishes", "/v1/extender/jobEnqueueable", "/metrics",
    "/v1/slamls", "/healthz", "/", "/jobs", "/jobs/{}", "/queue", "/events", "/what-if?gpus={}", "/decisions/{}",
)  # fmt: skip


SLAML = {  # one that was refused, so that its tasks take no GPU of others
    "_id": "a-slaml", "version": 1, "namespace": "default", "name": "mnist", "generation": 1, "created": 1.0,
    "spec": '{"slaTarget": 1, "tasks": [{"taskName": "a", "containerImage": "i", "GPU": "1"}]}', "notes": "{}",
    "judged": {"generation": 1, "accepted": False, "reason": "Invalid", "sentence": "No."}, "finished": True,
    "status": {"state": "Refused", "conditions": [{"type": "Completed", "status": "False", "message": "No."}]},
}  # fmt: skip


class Newest:
    """The API of the world's present coordinator."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world.api, name)


class AnyData:
    """One world, and all that chance does to it."""

    def __init__(self, seed: int) -> None:
        self.chance, self.world = random.Random(seed), World(gpus=4)
        self.world.submit(STEADY, [1], Behaviour(iterations=10**9))
        self.world.submit("one", [1, 2], Behaviour(iterations=10**9))
        self.world.submit("short", [1], Behaviour(iterations=30))
        self.world.run(lambda w: set(w.states().values()) == {s.RUNNING})
        self.world.users.put("slamls", SLAML)
        self.world.c.trouble = ""  # as after a turn of its loop
        self.before = self._touched()
        self.counts: dict[int, int] = {}  # answers by status
        self.names = 0

    def _touched(self) -> tuple[Any, ...]:
        """What a disturbance of the steady job would change."""
        job, launch = self.world.job(STEADY), self.world.machines.present(STEADY)
        assert launch is not None
        return job.state, job.generation, job.launch, job.gpu_ids, launch.status.spawn_at, launch.alive, launch.trains

    def change(self) -> str:
        """Change, add or delete one row, without regard to any version."""
        table = self.chance.choice(TABLES)
        rows = [row for row in self.world.users.list(table) if not self._is_steady(table, row)]
        if not rows or self.chance.random() < 0.15:
            return self._add(table)
        row = self.chance.choice(rows)
        if self.chance.random() < 0.05 and table != "nodes":
            self.world.users._write(table, row["_id"], None)
            return f"{table} {row['_id']!r} deleted"
        fields = self.chance.sample(sorted(set(row) - {"_id"}), min(len(row) - 1, self.chance.randint(1, 3)))
        changed = {field: self.chance.choice(NONSENSE) for field in fields}
        self._write(table, {**row, **changed})
        return f"{table} {row['_id']!r} {changed}"

    def _is_steady(self, table: str, row: dict[str, Any]) -> bool:
        """Its own rows; the node on which it is; of a table with several jobs in a row that, too."""
        mine = row["_id"] in (STEADY, *self.before[3]) if table in ("jobs", "gpus") else False
        return mine or table in ("nodes", "heartbeats")

    def _add(self, table: str) -> str:
        self.names += 1
        row = {"_id": self.chance.choice((f"new-{self.names}", self.names, f"x {self.names}"))}
        like = self.chance.choice(self.world.users.list(table) or [{}])
        for field in self.chance.sample(sorted(set(like) - {"_id"}), self.chance.randint(0, max(0, len(like) - 1))):
            row[field] = self.chance.choice((like[field], self.chance.choice(NONSENSE)))
        if table == "jobs":
            row["job_id"] = self.chance.choice((row["_id"], "one", "short", None))
        if table == "gpus":  # another GPU, whatever else it says
            row["gpu_id"] = row["_id"]
        self._write(table, row)
        return f"{table} {row} added"

    def _write(self, table: str, row: dict[str, Any]) -> None:
        """As an adapter would take it from a user's own program: nothing that no store can hold."""
        self.world.users._write(table, row["_id"], rules.checked(row))

    def ask(self, call: Caller) -> str:
        """Send one request that would not act on the steady job; AssertionError for a 5xx."""
        method, path = self.chance.choice(METHODS), self._path()
        body = None if method in ("GET", "HEAD", "OPTIONS") else self._body()
        answer = call(method, path, body)
        self.counts[answer.status] = self.counts.get(answer.status, 0) + 1
        said = f"{method} {path} {body!r:.300} -> {answer.status}"
        assert answer.status < 500 or self._is_away(answer), f"{said} {answer.raw[:500]!r}"
        return said

    def _is_away(self, answer: Answer) -> bool:
        down = self.world.store.down and answer.headers["Retry-After"] == str(RETRY_AFTER_S)
        return answer.status == 503 and down

    def _path(self) -> str:
        names = ["one", "short", "n1", "V100", "speed_profiles", "nothing", f"new-{self.names}", "5", "é/😀", "%00"]
        path = self.chance.choice(PATHS)
        while "{}" in path:
            path = path.replace("{}", quote(self.chance.choice(names), safe=""), 1)
        return path

    def _body(self) -> bytes:
        if self.chance.random() < 0.1:
            return bytes(self.chance.choices(range(256), k=self.chance.randint(0, 80)))
        good = {"command": ["true"], "optional_num_gpus": [1], "job_id": "one", "gpus": 2, "signal": "stop", "rows": []}
        keys = self.chance.sample(sorted(good), self.chance.randint(0, len(good)))
        doc = {key: self.chance.choice((good[key], self.chance.choice(NONSENSE))) for key in keys}
        if self.chance.random() < 0.2:
            doc["".join(self.chance.choices(string.printable, k=5))] = self.chance.choice(NONSENSE)
        return json.dumps(doc).encode()

    def check(self, told: list[str]) -> None:
        """The loop has looked at it all, and the steady job is as it was."""
        assert self._touched() == self.before, "\n".join([*told, self.world.story()])
        assert [v for v in self.world.machines.violations if STEADY in str(v)] == []

    def run(self, rounds: int) -> None:
        """Each round is a change, a turn of the loop and a request.

        In each hundred the coordinator begins anew twice, takes the term twice and brings the store in line with what
        runs twice, and the store is away for some rounds.
        """
        told: list[str] = []
        with serve(cast(Services, Newest(self.world))) as live:
            live.app.settings["failures"].limit = 10**9  # every call here comes from one address
            call = Caller(live)
            for number in range(rounds):
                told = [*told[-5:], self.change()]
                self.world.store.down = number % 100 in (50, 51, 52)
                if number % 50 == 25:
                    self.world.boot()
                    self.world.c.trouble = ""  # as after a turn of its loop
                if number % 50 == 10:
                    self.world.c._begin()
                if number % 50 == 40:
                    self.world.c.recover()
                self.world.tick()
                told.append(self.ask(call))
                self.check(told)
        steps = self.world.machines.present(STEADY)
        assert steps is not None and steps.steps > rounds / 4


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(drawn(1, 5)))
def test_whatever_is_written_and_asked_the_loop_goes_on_and_no_other_job_is_touched(seed: int) -> None:
    AnyData(seed).run(rounds=60)
