"""Promise: whatever the cluster, moves, spread jobs, deadlines and aging give decisions that can be carried out,
the same every time, and final: once accepted nothing more is decided.

The clusters are drawn so that every kind of decision comes up often; Hypothesis draws the odd ones
(`test_engine.py`).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import get_args

import pytest

from adaptive_scheduler.decision import Hold, Move, Reshape, Start, check, placed_on, workers_of
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.growth import Growth
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import QueueOrder, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node, Worker
from adaptive_scheduler.tentative_snapshot import after
from tests.depth import drawn
from tests.unit.adaptive_scheduler.worlds import OVERHEADS, speed_rows

STATES = drawn(1200, 2500)
SPEED_UP = {1: 1.0, 2: 1.7, 4: 2.4, 8: 3.9}
NOW = 5000.0
PROFILES = Profiles.from_rows(
    [*speed_rows("t", "V100", SPEED_UP), *speed_rows("t", "K80", {n: 0.3 * s for n, s in SPEED_UP.items()})],
    [{"job_type": "t", **OVERHEADS}, {"job_type": "cheap", **dict.fromkeys(OVERHEADS, 1)}],
)


def draw(rng):
    kinds = {f"n{i}": rng.choice(("V100", "V100", "K80")) for i in range(rng.randint(1, 4))}
    jobs = [draw_running(rng, f"r{i}", kinds) for i in range(rng.randint(0, 5))]
    jobs += [draw_waiting(rng, f"w{i}", kinds) for i in range(rng.choice((0, 0, 1, 2, 3)))]
    nodes = []
    for name, kind in kinds.items():
        used = sum(w.num_gpus for job in jobs for w in placed_on(job) if w.node == name)
        gpus = [Gpu(f"{name}u{i}", "in use") for i in range(used)]
        gpus += [Gpu(f"{name}i{i}") for i in range(rng.choice((0, 0, 1, 2, 4, 8)))]
        nodes.append(Node(name, kind, tuple(gpus), rng.random() < 0.9, heard=rng.random() < 0.9))
    return ClusterSnapshot(tuple(nodes), tuple(jobs), PROFILES)


def draw_common(rng, kinds):
    return {
        "type": "t",
        "optional": rng.choice(((1, 2, 4, 8), (1, 2, 4, 8), (2, 4), (1, 2), (4, 8), (8,))),
        "iterations_left": rng.choice((None, 10, 1000, 4000, 30_000)),
        "submit_s": rng.choice((0.0, 4000.0, 4900.0)),
        "sla_s": rng.choice((None, None, 1500.0, 6000.0, 9000.0, 20_000.0)),
        "gpu_type": rng.choice((None, None, None, "V100")),
        "pinned": rng.choice((None,) * 9 + ("n0",)),
    }


def draw_running(rng, name, kinds):
    common = draw_common(rng, kinds)
    num_gpus, node = rng.choice(common["optional"]), rng.choice(list(kinds))
    others = [n for n in kinds if n != node and kinds[n] == kinds[node]]
    workers = ()
    if others and num_gpus > 1 and rng.random() < 0.5:
        there = rng.randint(1, num_gpus - 1)
        workers = (Worker(node, num_gpus - there), Worker(rng.choice(others), there))
    return Job(
        name, state=rng.choice(("running",) * 9 + ("adjusting",)), num_gpus=num_gpus, node=node, workers=workers,
        max_workers=max(len(workers), rng.choice((1, 1, 2, 3))), growth=Growth(rng.choice(("PC", "CC"))),
        busy=rng.random() < 0.1, cooling_until=rng.choice((0, 0, 0, NOW + 9)),
        wanted=rng.choice((None,) * 8 + (2,)), **common,
    )  # fmt: skip


def draw_waiting(rng, name, kinds):
    return Job(name, state="submitted", max_workers=rng.choice((1, 1, 2, 3)), **draw_common(rng, kinds))


def draw_settings(rng):
    return Settings(
        systems=rng.choice((("elastic",), ("elastic", "deadline"))),
        makespan_scope=rng.choice(("cluster", "cluster", "pair")),
        tiebreak=rng.choice(("full", "first")),
        over_release=rng.choice(("never", "needed", "always")),
        refined=rng.random() < 0.5,
        allow_noop=rng.random() < 0.8,
        moves=rng.random() < 0.8,
        placement=rng.choice(("host", "host", "count_only")),
        batch_scaling=rng.choice(("fixed", "fixed", "weak")),
        compare_with_waiting=rng.random() < 0.3,
        reserve_after_s=rng.choice((0, 500, 3600)),
        queue_order=rng.choice(get_args(QueueOrder)),
    )


def kind_of(snapshot, decision):
    words = [type(decision).__name__]
    if getattr(decision, "workers", ()):
        words.append("spread")
    if isinstance(decision, Start) and decision.victim:
        words.append("by a spread victim" if snapshot.job[decision.victim].workers else "by a victim")
    for said in ("is kept for", "deadline is missed", "breaks a deadline", "once the next job has ended"):
        words += [said] * (said in decision.explanation.sentence)
    return " ".join(words)


@pytest.mark.drawn
def test_whatever_the_cluster_decisions_can_be_carried_out_are_the_same_again_and_final():
    rng, seen = random.Random(42), Counter()
    for _ in range(STATES):
        snapshot, chosen = draw(rng), draw_settings(rng)
        decisions = decide(snapshot, NOW, chosen)
        check(snapshot, decisions, anywhere=chosen.placement == "count_only")
        assert decide(snapshot, NOW, chosen) == decisions
        assert [d for d in decide(after(snapshot, *decisions), NOW, chosen) if not isinstance(d, Hold)] == []
        for decision in decisions:
            seen[kind_of(snapshot, decision)] += 1
            assert_allowed(snapshot, decision, chosen)
    # The states are of every sort.
    for kind in (
        "Start", "Start by a victim", "Start by a spread victim", "Start spread", "Start breaks a deadline",
        "Reshape", "Reshape spread", "Move", "Hold", "Hold is kept for", "Hold deadline is missed",
        "Hold once the next job has ended",
    ):  # fmt: skip
        assert seen[kind] >= drawn(1, 3), (
            f"the drawn states lack {kind!r}: a change of what is drawn shifts all draws; raise STATES",
            seen,
        )


def assert_allowed(snapshot, decision, chosen):
    if not isinstance(decision, Start | Reshape | Move):
        return
    job, nodes = snapshot.job[decision.job], [snapshot.node[w.node] for w in workers_of(decision)]
    own = {w.node for w in placed_on(job)}
    new = [n for n in nodes if n.name not in own]
    assert all(n.schedulable and job.gpu_type in (None, n.gpu_type) for n in new)
    assert all(job.pinned in (None, n.name) for n in new)
    if chosen.placement == "host":
        assert len({n.gpu_type for n in nodes}) == 1
        assert len(nodes) <= job.max_workers
    if isinstance(decision, Move):
        assert snapshot.node[job.node].heard and nodes[0].heard and chosen.moves
        faster = nodes[0].gpu_type != snapshot.node[job.node].gpu_type or job.workers
        assert decision.num_gpus > job.num_gpus or (faster and decision.num_gpus == job.num_gpus)
    if chosen.allow_noop and not isinstance(decision, Start) and decision.explanation.algorithm != "operator":
        assert decision.explanation.candidates[0].sum_s < decision.explanation.unchanged_sum_s or (
            chosen.makespan_scope == "pair"
        )
