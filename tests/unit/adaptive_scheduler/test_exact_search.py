"""Promise (D5): every choice equals that of the literal search over all schemes, written here a second time.

The numbers are sums of eighths, so that both sides add up without rounding and ties are real ties.
"""

from __future__ import annotations

import random

import pytest

from adaptive_scheduler.decision import Move, Reshape, Start
from adaptive_scheduler.policies.elastic.algorithms import schedule_incoming, schedule_running
from adaptive_scheduler.profiles.growth import Growth
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node
from tests.depth import drawn

STATES = drawn(500, 5000)  # of each of the two algorithms
COUNTS = (1, 2, 3, 4, 6, 8)
NAMES = ("k8s_init", "k8s_term", "proc_init", "proc_term", "ckpt")


def draw(rng):
    """A small cluster, its speeds and overheads as plain tables, and settings. A third is full of ties."""
    coarse = rng.random() < 0.33
    eighths, lasting = ((4, 8), (0, 1)) if coarse else (range(1, 17), range(7))
    nodes = [(f"n{i}", rng.choice("VK"), rng.choice((0, 0, 1, 2, 3, 5))) for i in range(rng.randint(1, 3))]
    speeds = {(t, g, n): rng.choice(eighths) / 8 for t in "xy" for g in "VK" for n in COUNTS}
    overheads = {t: {name: rng.choice(lasting) for name in NAMES} for t in "xy"}
    jobs = [draw_job(rng, f"j{i}", rng.choice(nodes)[0], coarse) for i in range(rng.randint(0, 6))]
    flags = {
        "over_release": rng.choice(("never", "never", "always")),
        "makespan_scope": rng.choice(("cluster", "cluster", "pair")),
        "removal_range": rng.choice(("resolved", "resolved", "printed")),
        "tiebreak": "full",
        "allow_noop": rng.random() < 0.8,
        "min_gain_factor": rng.choice((0, 1, 2)),
        "moves": rng.random() < 0.7,
    }
    new = Job("new", rng.choice("xy"), "submitted", counts(rng), iterations_left=rng.choice((16, 24, 40)))
    return nodes, speeds, overheads, jobs, new, flags


def counts(rng):
    return tuple(sorted(rng.sample(COUNTS, rng.randint(1, 4))))


def draw_job(rng, name, node, coarse):
    optional = counts(rng)
    left = rng.choice((16, 32)) if coarse else rng.randint(0, 60)
    return Job(
        name, rng.choice("xy"), rng.choice(("running",) * 5 + ("adjusting",)), optional,
        num_gpus=rng.choice(optional), node=node, iterations_left=left, busy=rng.random() < 0.1,
        cooling_until=rng.choice((0, 0, 0, 100)), wanted=rng.choice((None,) * 9 + (1,)),
        growth=Growth(rng.choice(("PC", "CC"))),
    )  # fmt: skip


def picture(nodes, speeds, overheads, jobs):
    built = []
    for name, kind, idle in nodes:
        held = sum(j.num_gpus for j in jobs if j.node == name)
        gpus = [Gpu(f"{name}i{i}") for i in range(idle)] + [Gpu(f"{name}u{i}", "in use") for i in range(held)]
        built.append(Node(name, kind, tuple(gpus)))
    rows = [
        {"job_type": t, "gpu_type": g, "num_gpus": n, "seconds_per_iteration": s} for (t, g, n), s in speeds.items()
    ]
    profiles = Profiles.from_rows(rows, [{"job_type": t, **o} for t, o in overheads.items()])
    return ClusterSnapshot(tuple(built), tuple(jobs), profiles)


class Oracle:
    """The printed search with full sums: every scheme, every job's remaining time worked out anew."""

    def __init__(self, nodes, speeds, overheads, jobs, flags):
        self.nodes, self.speeds, self.overheads, self.jobs, self.flags = nodes, speeds, overheads, jobs, flags
        self.kind = {name: kind for name, kind, _ in nodes}
        self.free = [j for j in jobs if j.state == "running" and not j.busy and not j.cooling_until and not j.wanted]

    def training(self, job, kind, n):
        return job.iterations_left * self.speeds[job.type, kind, n]

    def end(self, job):
        o = self.overheads[job.type]
        return o["ckpt"] + o["proc_term"] + o["k8s_term"]

    def cost(self, job):
        o = self.overheads[job.type]
        return o["ckpt"] + o["proc_term"] + o["proc_init"]

    def as_is(self):
        return {j.id: self.training(j, self.kind[j.node], j.num_gpus) + self.end(j) for j in self.jobs}

    def reshaped(self, job, n):
        return self.cost(job) + self.training(job, self.kind[job.node], n) + self.end(job)

    def new(self, job, kind, n):
        o = self.overheads[job.type]
        return o["k8s_init"] + o["proc_init"] + self.training(job, kind, n) + self.end(job)

    def incoming(self, new):
        best = None
        for name, kind, idle in self.nodes:
            for n in new.optional:
                for victim, keeps in self.victims(name, n - idle):
                    remaining = {} if self.flags["makespan_scope"] == "pair" else self.as_is()
                    if victim:
                        remaining[victim.id] = self.reshaped(victim, keeps)
                    remaining[new.id] = self.new(new, kind, n)
                    who = victim.id if victim else ""
                    key = (max(remaining.values()), sum(remaining.values()), victim is not None, n, name, who)
                    if best is None or key < best[0]:
                        best = (key, (name, n, victim.id if victim else None, keeps))
        return best and best[1]

    def victims(self, node, need):
        if need <= 0:
            return [(None, None)]
        found = []
        for job in self.free:
            for keeps in sorted(job.optional, reverse=True):
                gives = job.num_gpus - keeps
                in_range = self.flags["removal_range"] == "resolved" or job.optional[0] <= gives <= job.optional[-1]
                enough = gives == need or (self.flags["over_release"] == "always" and gives > need)
                if job.node == node and gives > 0 and in_range and enough:
                    found.append((job, keeps))
        return found

    def grown(self):
        before = self.as_is()
        pair = self.flags["makespan_scope"] == "pair"
        best = None
        for job in self.free:
            for name, kind, idle in self.nodes:
                for n in job.optional:
                    elsewhere = name != job.node
                    faster_only = elsewhere and n == job.num_gpus and kind != self.kind[job.node]
                    if (n if elsewhere else n - job.num_gpus) > idle or not (n > job.num_gpus or faster_only):
                        continue
                    if elsewhere and not self.flags["moves"]:
                        continue
                    keep = {job.id: before[job.id]} if pair else before
                    remaining = {**keep, job.id: self.changed(job, name, kind, n)}
                    makespan, total = max(remaining.values()), sum(remaining.values())
                    gain = self.flags["min_gain_factor"] * (self.cost(job) + self.launch(job) * elsewhere)
                    sooner = makespan < max(keep.values()) - gain
                    less = makespan <= max(keep.values()) and total < sum(keep.values()) - gain
                    if (self.flags["allow_noop"] or faster_only) and not sooner and not less:
                        continue
                    converged = job.growth.category == "CC"
                    key = (makespan, total, converged, elsewhere, n, job.id, name)
                    if best is None or key < best[0]:
                        best = (key, (job.id, n, name))
        return best and best[1]

    def launch(self, job):
        o = self.overheads[job.type]
        return o["k8s_term"] + o["k8s_init"]

    def changed(self, job, name, kind, n):
        elsewhere = self.launch(job) if name != job.node else 0
        return self.cost(job) + self.training(job, kind, n) + self.end(job) + elsewhere


@pytest.mark.drawn
def test_algorithm_1_chooses_what_the_literal_search_chooses():
    rng = random.Random(1)
    chosen = []
    for _ in range(STATES):
        nodes, speeds, overheads, jobs, new, flags = draw(rng)
        snapshot = picture(nodes, speeds, overheads, [*jobs, new])
        answer = schedule_incoming(snapshot, new, 50.0, Settings(spare_critical=False, **flags))
        got = None
        if isinstance(answer, Start):
            got = (answer.node, answer.num_gpus, answer.victim, answer.victim_num_gpus)
        assert got == Oracle(nodes, speeds, overheads, jobs, flags).incoming(new)
        chosen.append(got)
    assert sum(c is None for c in chosen) > 0.03 * STATES  # the states are of every sort
    assert sum(c is not None and c[2] is not None for c in chosen) > 0.1 * STATES


@pytest.mark.drawn
def test_algorithm_2_chooses_what_the_literal_search_chooses():
    rng = random.Random(2)
    chosen = []
    for _ in range(STATES):
        nodes, speeds, overheads, jobs, _, flags = draw(rng)
        snapshot = picture(nodes, speeds, overheads, jobs)
        answer = schedule_running(snapshot, 50.0, Settings(**flags))
        got = (answer.job, answer.num_gpus, answer.node) if answer else None
        assert got == Oracle(nodes, speeds, overheads, jobs, flags).grown()
        assert answer is None or isinstance(answer, Move) == (answer.node != snapshot.job[answer.job].node)
        chosen.append(answer)
    assert sum(c is None for c in chosen) > 0.1 * STATES
    assert sum(isinstance(c, Reshape) for c in chosen) > 0.1 * STATES
    assert sum(isinstance(c, Move) for c in chosen) > 0.02 * STATES
