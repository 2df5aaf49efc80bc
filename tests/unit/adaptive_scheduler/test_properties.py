"""Promise: whatever the cluster and whichever systems may act, what `decide` answers is safe, final and worth its cost.

The clusters and the settings come from `any_world.py`, which Hypothesis seeds: a failure names the seed, and
`any_world.drawn(seed)` is the cluster. GPUs are followed one by one, apart from the engine's own `check`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from adaptive_scheduler.decision import Finish, Hold, Limit, Move, Requeue, Reshape, Start, Stay, placed_on, workers_of
from adaptive_scheduler.engine import decide
from adaptive_scheduler.models.contention import move_cost_s
from adaptive_scheduler.models.prediction import cross_host_s, reshape_cost_s, t_keep
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.tentative_snapshot import after
from reshape_papers.comparison_policies.allotment_policy import towards
from tests.unit.adaptive_scheduler.any_world import NOW, drawn

ROOT = Path(__file__).parents[3]
OPERATIONS = (Start, Reshape, Move, Requeue, Finish)

seeds = st.integers(0, 10**6)


def operations(decisions):
    return [d for d in decisions if isinstance(d, OPERATIONS)]


def touched(decision):
    return {decision.job, getattr(decision, "victim", None)} - {None}


def by(decision):
    """Which part of the engine decided it."""
    return decision.explanation.algorithm


# ---- safety


class Books:
    """Who has which GPU, as a careful clerk would write it down."""

    def __init__(self, snapshot):
        self.snapshot = snapshot
        self.owner = {g.id: g.job for n in snapshot.nodes for g in n.gpus}
        self.free = {n.name: [g.id for g in n.gpus if g.state == "idle"] for n in snapshot.nodes if n.schedulable}

    def of(self, job, node):
        return [g.id for g in self.snapshot.node[node].gpus if self.owner[g.id] == job]

    def gives(self, job, node, count):
        """Its last ones there; nobody's until somebody is given them, and never idle."""
        leaving = self.of(job, node)[-count:] if count else []
        self.owner |= dict.fromkeys(leaving)
        return leaving

    def gets(self, job, node, count, given=()):
        taken = (list(given) + self.free.get(node, []))[:count]
        assert len(taken) == count, f"{job} is promised {count} GPUs of {node}, which has {len(taken)}"
        assert all(self.owner[g] is None for g in taken), "a GPU that has a job already"
        self.owner |= dict.fromkeys(taken, job)
        self.free[node] = [g for g in self.free.get(node, []) if g not in taken]

    def carry_out(self, decision):
        job = self.snapshot.job[decision.job]
        if isinstance(decision, Start):
            given = self._from_victim(decision)
            for w in workers_of(decision):
                self.gets(job.id, w.node, w.num_gpus, given if w.node == decision.node else ())
        elif isinstance(decision, Reshape):
            has = {w.node: w.num_gpus for w in placed_on(job)}
            wants = {w.node: w.num_gpus for w in workers_of(decision)}
            for node in sorted(has.keys() | wants.keys()):
                more = wants.get(node, 0) - has.get(node, 0)
                self.gives(job.id, node, max(0, -more))
                self.gets(job.id, node, max(0, more))
        elif isinstance(decision, Move):
            self.gets(job.id, decision.node, decision.num_gpus)  # it keeps its old ones until it is gone

    def _from_victim(self, decision):
        if decision.victim is None:
            return ()
        victim = self.snapshot.job[decision.victim]
        assert decision.victim_num_gpus in victim.optional
        return self.gives(victim.id, decision.node, victim.num_gpus - decision.victim_num_gpus)


@given(seeds)
def test_a_gpu_never_has_two_jobs_and_a_job_only_counts_that_it_allows(seed):
    snapshot, chosen = drawn(seed)
    books = Books(snapshot)
    for decision in operations(decide(snapshot, NOW, chosen)):
        books.carry_out(decision)
        if isinstance(decision, Start | Reshape | Move):
            job, mine = snapshot.job[decision.job], [g for g, owner in books.owner.items() if owner == decision.job]
            old = job.num_gpus if isinstance(decision, Move) else 0
            assert decision.num_gpus in job.optional and len(mine) == decision.num_gpus + old


@given(seeds)
def test_nobody_is_changed_twice_or_while_an_operation_is_under_way_or_against_its_rules(seed):
    snapshot, chosen = drawn(seed)
    changed = Counter()
    for decision in decide(snapshot, NOW, chosen):
        if isinstance(decision, Hold | Stay):
            continue
        changed.update(touched(decision))
        for job in map(snapshot.job.get, touched(decision)):
            assert not job.busy
            running = job.id != decision.job or not isinstance(decision, Start)
            assert job.state == ("running" if running else "submitted")
            by_people = by(decision) in ("operator", "target")
            if running and not job.uses_cpu and not by_people:
                back = job.id != decision.job and job.grew_from and decision.victim_num_gpus >= job.grew_from
                assert job.wanted is None and (job.cooling_until <= NOW or back)
    assert not changed or max(changed.values()) == 1


def stopped(decision):
    """Whose training it stops; a job that ends at its own target has asked for that."""
    whose = decision.victim if isinstance(decision, Start) else decision.job
    return None if isinstance(decision, Finish | Hold | Stay | Limit) else whose


@given(seeds)
def test_no_policy_ever_stops_a_job_that_has_not_shown_that_it_resumes(seed):
    snapshot, chosen = drawn(seed)
    for decision in decide(snapshot, NOW, chosen):
        job = snapshot.job.get(stopped(decision))
        if job is not None and job.rigid:
            assert by(decision) == "operator" and job.forced and decision.num_gpus == job.wanted


@given(seeds)
def test_no_comparison_policy_ever_stops_such_a_job(seed):
    snapshot, _ = drawn(seed)
    placed = {job.id for job in snapshot.placed if not job.uses_cpu}
    decisions = [*towards(snapshot, dict.fromkeys(placed, 8), "all"), *towards(snapshot, {}, "none")]
    assert not any(job.rigid for job in map(snapshot.job.get, map(stopped, decisions)) if job is not None)


@given(seeds)
def test_a_job_starts_or_goes_only_where_it_may(seed):
    snapshot, chosen = drawn(seed)
    for decision in decide(snapshot, NOW, chosen):
        if isinstance(decision, Start | Move):
            job, nodes = snapshot.job[decision.job], [snapshot.node[w.node] for w in workers_of(decision)]
            assert all(n.schedulable and job.pinned in (None, n.name) for n in nodes)
            assert job.uses_cpu or all(n.gpus and job.gpu_type in (None, n.gpu_type) for n in nodes)
            assert not job.uses_cpu or nodes[0].cores > 0
            assert not isinstance(decision, Move) or (nodes[0].heard and snapshot.node[job.node].heard)


@given(seeds)
def test_what_jobs_on_cpu_have_asked_for_is_never_given_twice(seed):
    snapshot, chosen = drawn(seed)
    then = after(snapshot, *decide(snapshot, NOW, chosen))
    for node in then.nodes:
        asked = sum(j.cores for j in then.on_cpu[node.name])
        assert asked <= max(node.cores, sum(j.cores for j in snapshot.on_cpu[node.name])) + 1e-9


# ---- finality


@given(seeds)
def test_what_is_accepted_stays_as_it_is(seed):
    """Deciding again brings only what comes one at a time: the next overdue job (D7), the next move to a node with too
    few jobs (2.5), a start in the room that a job on CPU has left, and what follows from these; and it soon ends."""
    snapshot, chosen = drawn(seed)
    chosen = replace(chosen, specon=replace(chosen.specon, donor_guard=True))  # S13: as printed, a job goes in circles
    helped, left, evened = set(), set(), False  # jobs for whom room is made; nodes that somebody left
    for turn in range(2 + len(snapshot.jobs)):
        decisions = decide(snapshot, NOW, chosen)
        answers = [d for d in decisions if not isinstance(d, Hold)]
        if not answers:
            return
        first = answers[0]
        in_room = isinstance(first, Start) and first.node in left and snapshot.job[first.job].uses_cpu
        one_at_a_time = by(first) == "deadline.overdue" or (evened and by(first) == "specon.rebalance")
        assert turn == 0 or in_room or one_at_a_time, first
        stopped = [d for d in answers if isinstance(d, Requeue)]
        assert not helped & {i for d in stopped for i in d.yields_to}, "two give way to the same job"
        helped |= {i for d in stopped for i in d.yields_to}
        left |= {snapshot.job[d.job].node for d in answers if isinstance(d, Move | Requeue | Finish)}
        evened = "specon.rebalance" in map(by, answers)
        snapshot = after(snapshot, *decisions)
    raise AssertionError("there is no end of it")


@given(seeds)
def test_the_order_of_jobs_and_nodes_does_not_matter(seed):
    snapshot, chosen = drawn(seed)
    chosen, rng = replace(chosen, tiebreak="full"), random.Random(seed)
    mixed = replace(
        snapshot, nodes=tuple(rng.sample(snapshot.nodes, len(snapshot.nodes))),
        jobs=tuple(rng.sample(snapshot.jobs, len(snapshot.jobs))),
    )  # fmt: skip
    assert sorted(map(short, decide(mixed, NOW, chosen))) == sorted(map(short, decide(snapshot, NOW, chosen)))


def short(decision):
    words = [getattr(decision, name, None) for name in ("node", "num_gpus", "victim", "victim_num_gpus")]
    cores = round(getattr(decision, "cores", None) or 0.0, 9)  # the last bit of a sum may depend on its order
    return type(decision).__name__, decision.job, str(words), cores


SCRIPT = """
from adaptive_scheduler.engine import decide
from tests.unit.adaptive_scheduler.any_world import NOW, drawn
for seed in range(60):
    print(decide(drawn(seed)[0], NOW, drawn(seed)[1]))
"""


def test_the_decisions_are_the_same_under_any_hash_seed():
    def told(hash_seed):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    first = told("0")
    assert all(f"{kind.__name__}(" in first for kind in (Start, Move, Limit, Stay))
    assert told("1") == told("2") == first


# ---- every change is worth its cost (1.9, 5.5)


@given(seeds)
def test_nobody_grows_or_moves_for_less_than_that_costs(seed):
    snapshot, chosen = drawn(seed)
    chosen = replace(chosen, allow_noop=True, specon=replace(chosen.specon, accept_move="makespan"))
    profiles = snapshot.profiles.scaled(chosen.batch_scaling)
    for decision in decide(snapshot, NOW, chosen):
        job, told = snapshot.job[decision.job], decision.explanation
        if by(decision) == "elastic.running":
            cost = reshape_cost_s(profiles, job)
            cost += cross_host_s(profiles, job) if isinstance(decision, Move) else 0.0
            gain = t_keep(profiles, job, snapshot.node[job.node].gpu_type) - told.candidates[0].job_s
            assert gain > chosen.min_gain_factor * cost
        elif by(decision) in ("specon.move", "specon.rebalance") and isinstance(decision, Move):
            best = told.candidates[0]
            assert (best.makespan_s, best.sum_s) < (told.unchanged_makespan_s, told.unchanged_sum_s)
            assert best.job_s >= move_cost_s(profiles, job)


# ---- who may act (5.4)

MAY = {
    "elastic.incoming": "elastic", "elastic.running": "elastic", "deadline.overdue": "deadline",
    "deadline.queue": "deadline", "specon.move": "specon", "specon.rebalance": "specon", "flowcon": "flowcon",
    "rights.suspend": "elastic",
}  # fmt: skip


@given(seeds)
@example(3104)  # a job waits for one that it gave way to by right
def test_a_system_that_is_switched_off_decides_nothing_and_nobody_does_its_work_for_it(seed):
    snapshot, chosen = drawn(seed)
    for decision in decide(snapshot, NOW, chosen):
        assert MAY.get(by(decision), by(decision)) in (*chosen.systems, "operator", "target", "default", "cpu")
        if "elastic" not in chosen.systems:
            assert getattr(decision, "victim", None) is None, "without SideCar scheduling no job shrinks for another"
            assert not isinstance(decision, Reshape) or by(decision) == "operator"


@given(seeds)
def test_what_a_lower_line_does_never_changes_what_a_higher_one_decides(seed):
    """5.4: the answers without FlowCon are the first of those with it, and so without SpeCon."""
    snapshot, chosen = drawn(seed)
    chosen = replace(chosen, systems=("elastic", "specon", "flowcon", "deadline"))
    everything = decide(snapshot, NOW, chosen)
    without_limits = decide(snapshot, NOW, replace(chosen, systems=("elastic", "specon", "deadline")))
    without_moves = decide(snapshot, NOW, replace(chosen, systems=("elastic", "deadline")))
    assert everything[: len(without_limits)] == without_limits
    assert without_limits[: len(without_moves)] == without_moves


def test_every_kind_of_answer_comes_up():
    """Else these properties would hold for nothing."""
    seen = Counter()
    for seed in range(600):
        snapshot, chosen = drawn(seed)
        for d in decide(snapshot, NOW, chosen):
            seen[f"{type(d).__name__} {by(d)}"] += 1
            seen["by a victim"] += getattr(d, "victim", None) is not None
            victim = snapshot.job.get(getattr(d, "victim", None))
            seen["cooling"] += victim is not None and victim.cooling_until > NOW
            seen["rigid by an operator"] += snapshot.job[d.job].rigid and isinstance(d, Reshape)
            seen["spread"] += bool(getattr(d, "workers", ()))
            seen["kept"] += "is kept for" in d.explanation.sentence
    kinds = (
        "Finish target", "Limit flowcon", "Move elastic.running", "Move specon.move", "Move specon.rebalance",
        "Requeue deadline.overdue", "Reshape elastic.running", "Reshape operator", "Start deadline.overdue",
        "Start default", "Start elastic.incoming", "Start cpu", "Stay specon.move", "by a victim", "spread", "kept",
        "rigid by an operator", "cooling",
    )  # fmt: skip
    assert [kind for kind in kinds if seen[kind] < 2] == []


def test_without_any_system_jobs_only_start_on_their_fixed_count():
    for seed in range(100):
        snapshot, _ = drawn(seed)
        kinds = {by(d) for d in decide(snapshot, NOW, Settings(systems=()))}
        assert kinds <= {"operator", "target", "default", "cpu"}
