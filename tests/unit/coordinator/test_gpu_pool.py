"""Mode `pool`: no training is on a GPU that no running placeholder of its namespace and queue holds, whatever happens.

The real coordinator beside a small cluster in memory: its scheduler places placeholder pods and foreign ones, its
kubelets give them GPUs, its agents tell which, somebody evicts some.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from coordinator.config import Config
from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode, register_node
from tests.fakes.shims import Behaviour
from tests.fakes.world import GPU_TYPE, World

LONG = Behaviour(iterations=40_000)
GRACE_S = 60.0
QUICK = Config(
    heartbeat_s=2.0,
    lease_s=30.0,
    grace_s=5.0,
    kill_s=2.0,
    init_timeout_s=20.0,
    first_step_timeout_s=6.0,
    retries=3,
    retry_s=1.0,
    term_s=15.0,
    pool_idle_s=10.0,
)


@dataclass
class FakePod:
    """A pod that asks for one GPU."""

    name: str
    pool: str  # empty: somebody else's
    node: str | None  # the only node that it may go to
    gpu: str | None = None
    leaves_at: float | None = None
    low: bool = False


class SmallCluster:
    """Acts as Kubernetes, the launcher and the agents, once per tick."""

    def __init__(self, nodes: int = 2, gpus: int = 4) -> None:
        self.where = {f"p{n}-{i}": f"p{n}" for n in range(nodes) for i in range(gpus)}
        self.pods: dict[str, FakePod] = {}
        self.quota: dict[str, int] = {}  # placeholders by pool
        self.refused: dict[str, str] = {}
        self.marks = 0
        self.world = World(gpus=0, config=QUICK, nodes=[self.found(node) for node in sorted({*self.where.values()})])
        self.world.users.put("queues", {"_id": "team", "devices": "pool"})
        self.turn()

    def found(self, node: str) -> FoundNode:
        holders = {pod.gpu: f"{_namespace(pod)}/{pod.name}" for pod in getattr(self, "pods", {}).values() if pod.gpu}
        mine = [gpu for gpu, place in self.where.items() if place == node]
        return FoundNode(node, tuple(FoundGpu(g, GPU_TYPE, None, True, holder=holders.get(g, "")) for g in mine))

    def submit(self, job: str, counts: list[int], namespace: str = "a", **more: Any) -> None:
        self.world.submit(job, counts, LONG, queue="team", namespace=namespace, **more)

    def turn(self) -> None:
        """Launcher, scheduler, kubelets and agents."""
        now = self.world.clock.wall()
        store = self.world.users
        rows = {row["_id"]: row for row in store.list("placeholders")}
        for pod in list(self.pods.values()):
            out = pod.leaves_at is not None and now >= pod.leaves_at
            if out or (pod.pool and rows.get(pod.name, {}).get("wanted") == "release"):
                del self.pods[pod.name]
        self._make(rows)
        self._place()
        for row in rows.values():
            pod = self.pods.get(row["_id"])
            if pod is None and (row.get("pod") or row["wanted"] == "release"):
                store.delete("placeholders", row["_id"])
            elif pod is None:
                store.update("placeholders", row["_id"], {}, {"failure": self.refused.get(row["_id"])})
            else:
                phase = "Running" if pod.gpu else "Pending"
                told = {"namespace": _namespace(pod), "node": self.where.get(pod.gpu or ""), "phase": phase}
                changes = {"pod": {**told, "leaves_at": pod.leaves_at}, "failure": None}
                store.update("placeholders", row["_id"], {}, changes)
        self._tell()

    def _make(self, rows: dict[str, Any]) -> None:
        for name, row in rows.items():
            pool = f"{row['namespace']}/{row['queue']}"
            count = sum(pod.pool == pool for pod in self.pods.values())
            if name in self.pods or row["wanted"] != "hold" or row.get("pod"):
                continue
            if count >= self.quota.get(pool, 99):
                self.refused[name] = "exceeded quota: gpus"
                continue
            self.pods[name] = FakePod(name, pool, row["node"], low=bool(row["opportunistic"]))

    def _place(self) -> None:
        taken = {pod.gpu for pod in self.pods.values()}
        for pod in sorted(self.pods.values(), key=lambda pod: (pod.low, pod.name)):
            fits = [g for g, node in self.where.items() if g not in taken and pod.node in (None, node)]
            if pod.gpu is None and pod.leaves_at is None and fits:
                pod.gpu = fits[0]
                taken.add(fits[0])

    def _tell(self) -> None:
        store = self.world.users
        for node in sorted({*self.where.values()}):
            register_node(store, self.found(node))
            asked = sum(self.where.get(pod.gpu or "") == node for pod in self.pods.values())
            whole = [*self.where.values()].count(node)
            told = {"allocatable": whole, "requested": asked}
            store.update("nodes", node, {}, {"pool": told, "agent": False})  # no agent, so that none is silent
        waits = [
            {"name": f"pod {pod.name}", "gpus": 1, "node": pod.node}
            for pod in self.pods.values()
            if not pod.pool and pod.gpu is None
        ]
        self.marks += 1
        store.put("pool", {"_id": "seen", "mark": str(self.marks), "waits": waits})

    def tick(self) -> None:
        self.world.tick()
        assert self.world.broken() == [], self.world.story()
        self.turn()
        assert self.wrong() == [], f"{self.wrong()}\n{self.world.story()}\n{self.pods}"

    def until(self, so: Any, limit_s: int = 300) -> None:
        for _ in range(limit_s):
            if so():
                return
            self.tick()
        raise AssertionError(f"not reached: {self.world.story()}\n{self.pods}")

    def wrong(self) -> list[str]:
        """Return which trainings are on a GPU that no placeholder of theirs holds."""
        found = []
        for gpu, launch in self.world.machines.owners.items():
            holder = next((pod for pod in self.pods.values() if pod.gpu == gpu), None)
            pool = self.world.job(launch.job).pool
            if holder is None or holder.pool != pool:
                found.append(f"{launch.job} of {pool} is on {gpu}, which {holder} holds")
        return found

    def gpus(self, job: str) -> int:
        return len(self.world.job(job).gpu_ids) if self.world.states().get(job) == s.RUNNING else 0

    def held(self, pool: str = "a/team") -> list[FakePod]:
        return [pod for pod in self.pods.values() if pod.pool == pool and pod.gpu]


def _namespace(pod: FakePod) -> str:
    return pod.pool.partition("/")[0] or "others"


def test_a_job_starts_once_its_gpus_are_reserved_and_they_go_back_after_it() -> None:
    cluster = SmallCluster()
    cluster.submit("one", [1, 2])
    cluster.until(lambda: cluster.gpus("one") == 2)
    assert [pod.low for pod in sorted(cluster.held(), key=lambda pod: pod.low)] == [False, True]
    cluster.world.api.operator.cancel("one")
    cluster.until(lambda: not cluster.pods)


def test_somebody_who_waits_gets_a_gpu_into_which_a_job_has_grown() -> None:
    cluster = SmallCluster(nodes=1)
    cluster.submit("one", [1, 2, 4])
    cluster.until(lambda: cluster.gpus("one") == 4)
    generation = cluster.world.job("one").generation
    cluster.pods["theirs"] = FakePod("theirs", "", None)
    began = cluster.world.clock.time
    cluster.until(lambda: cluster.pods["theirs"].gpu is not None)
    assert cluster.world.clock.time - began <= 12
    assert cluster.gpus("one") == 2 and cluster.world.job("one").generation == generation + 1
    kept = {pod.gpu: pod.low for pod in cluster.held()}
    assert [kept[gpu] for gpu in cluster.world.job("one").gpu_ids] == [False, True], "what it needs at least stays"
    cluster.until(lambda: cluster.gpus("one") == 2, 5)
    for _ in range(40):
        cluster.tick()
    assert cluster.gpus("one") == 2, "it leaves alone what somebody else has"
    del cluster.pods["theirs"]
    cluster.until(lambda: cluster.gpus("one") == 4)


def test_what_a_job_needs_at_least_is_not_given_to_somebody_who_waits() -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.submit("one", [1])
    cluster.until(lambda: cluster.gpus("one") == 1)
    cluster.pods["theirs"] = FakePod("theirs", "", None)
    for _ in range(60):
        cluster.tick()
    assert cluster.gpus("one") == 1


def test_an_evicted_placeholder_is_given_back_within_its_grace_and_the_job_goes_on_elsewhere() -> None:
    cluster = SmallCluster()
    cluster.submit("one", [1], checkpoint_claim="claim")
    cluster.until(lambda: cluster.gpus("one") == 1)
    (pod,) = cluster.held()
    until = pod.leaves_at = cluster.world.clock.wall() + GRACE_S
    cluster.until(lambda: pod.name not in cluster.pods)
    assert cluster.world.clock.wall() < until - 20
    cluster.until(lambda: cluster.gpus("one") == 1)
    assert pod.name not in {other.name for other in cluster.held()}


def test_a_job_that_cannot_save_trains_until_the_grace_of_its_placeholder_is_nearly_over() -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.submit("one", [1], elastic=False)
    cluster.until(lambda: cluster.gpus("one") == 1)
    (pod,) = cluster.held()
    pod.leaves_at = cluster.world.clock.wall() + GRACE_S
    for _ in range(20):
        cluster.tick()
    assert cluster.gpus("one") == 1
    assert "trains on as long as the cluster lets it" in cluster.world.job("one").doc["message"]
    cluster.until(lambda: pod.name not in cluster.pods)


def test_a_lost_placeholder_is_a_lost_gpu() -> None:
    cluster = SmallCluster()
    cluster.submit("one", [1, 2], node="p0")
    cluster.until(lambda: cluster.gpus("one") == 2)
    victim = next(pod for pod in cluster.held() if pod.low)
    victim.leaves_at = cluster.world.clock.wall() + 20
    cluster.until(lambda: cluster.gpus("one") == 1, 19)


def test_a_quota_binds_and_is_the_reason_why_a_job_waits() -> None:
    cluster = SmallCluster()
    cluster.quota["a/team"] = 2
    cluster.submit("one", [1, 2, 4], node="p0")
    cluster.until(lambda: cluster.gpus("one") == 2)
    cluster.submit("two", [2], node="p1")
    cluster.until(lambda: "exceeded quota: gpus" in str(cluster.world.job("two").doc.get("message")), 60)
    assert "exceeded quota: gpus" in cluster.world.api.jobs.job("two")["message"]
    assert len(cluster.held()) == 2 and cluster.gpus("one") == 2
    before = {row["_id"] for row in cluster.world.users.list("placeholders")}
    for _ in range(20):
        cluster.tick()
    assert {row["_id"] for row in cluster.world.users.list("placeholders")} == before, "it is asked for once"


def test_pools_do_not_use_each_others_gpus_and_grown_ones_are_given_to_another_pool() -> None:
    cluster = SmallCluster(nodes=1)
    cluster.submit("one", [1, 2, 4], "a")
    cluster.until(lambda: cluster.gpus("one") == 4)
    cluster.submit("two", [2], "b")
    cluster.until(lambda: cluster.gpus("two") == 2 and cluster.gpus("one") == 2)
    assert len(cluster.held("b/team")) == 2


def test_a_coordinator_that_starts_anew_keeps_all_of_it() -> None:
    cluster = SmallCluster()
    cluster.submit("one", [1, 2])
    cluster.until(lambda: cluster.gpus("one") == 2)
    generation = cluster.world.job("one").generation
    before = set(cluster.pods)
    cluster.world.clock.time += 20  # its term ends
    cluster.world.boot()
    for _ in range(30):
        cluster.tick()
    assert (cluster.world.job("one").generation, set(cluster.pods)) == (generation, before)


def test_before_the_launcher_has_told_of_placeholders_nothing_is_taken_from_a_job() -> None:
    cluster = SmallCluster()
    cluster.submit("one", [1, 2])
    cluster.until(lambda: cluster.gpus("one") == 2)
    generation = cluster.world.job("one").generation
    rows = cluster.world.users.list("placeholders")
    for row in rows:
        cluster.world.users.delete("placeholders", row["_id"])
    cluster.world.users.delete("pool", "seen")
    cluster.world.clock.time += 20  # its term ends
    cluster.world.boot()
    for _ in range(10):
        cluster.world.tick()
    for row in rows:
        cluster.world.users.put("placeholders", row)
    for _ in range(20):
        cluster.tick()
    assert cluster.world.job("one").generation == generation


@pytest.mark.parametrize("seed", range(6))
def test_no_training_is_on_a_gpu_without_a_placeholder_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    cluster = SmallCluster()
    for number in range(5):
        counts = chance.choice([[1], [1, 2], [2, 4], [1, 2, 4]])
        claim = chance.choice([{}, {"checkpoint_claim": "claim"}])
        cluster.submit(f"job-{number}", counts, chance.choice("ab"), elastic=chance.random() < 0.8, **claim)
    for moment in range(150):
        cluster.tick()
        event = chance.random()
        if event < 0.05:
            cluster.pods[f"theirs-{moment}"] = FakePod(f"theirs-{moment}", "", None)
        elif event < 0.1 and (theirs := [pod for pod in cluster.pods.values() if not pod.pool]):
            del cluster.pods[chance.choice(theirs).name]
        elif event < 0.15 and (ours := [pod for pod in cluster.pods.values() if pod.pool and pod.leaves_at is None]):
            chance.choice(ours).leaves_at = cluster.world.clock.wall() + GRACE_S
        elif event < 0.17:
            cluster.world.clock.time += 20
            cluster.world.boot()


def test_placeholders_are_given_back_though_their_queue_is_in_no_pool_any_more() -> None:
    cluster = SmallCluster()
    cluster.submit("one", [1, 2])
    cluster.until(lambda: cluster.gpus("one") == 2)
    cluster.world.api.operator.cancel("one")
    cluster.world.users.put("queues", {"_id": "team", "devices": "shared"})
    cluster.world.clock.time += 20
    cluster.world.boot()
    cluster.until(lambda: not cluster.pods, 100)


def test_placeholders_and_the_reservations_of_users_are_not_taken_for_each_other() -> None:
    cluster = SmallCluster()
    cluster.submit("one", [1, 2])
    cluster.until(lambda: cluster.gpus("one") == 2)
    api = cluster.world.api
    wall = cluster.world.clock.wall()
    api.reservations.plan_drain("p1", wall + 3600, wall + 7200)
    assert [(one["node"], one["purpose"]) for one in api.reservations.listed()] == [("p1", "maintenance")]
    for _ in range(5):
        cluster.tick()
    assert cluster.gpus("one") == 2 and len(cluster.pods) == 2
    assert len(api.reservations.listed()) == 1
