"""Promise: the planner leaves the paper's decisions only for a plan that is predicted to be better, and never changes
what must be left alone."""

import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from adaptive_scheduler.decision import Hold, Move, Reshape, Start, check
from adaptive_scheduler.engine import decide
from adaptive_scheduler.planning import fluid, planner
from adaptive_scheduler.planning.planned_jobs import read_cluster
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.shares import QueueShare, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node
from simulator.cluster import SimulatedCluster
from simulator.scenario import Costs, PolicySetup, Submission, Workload
from tests.depth import drawn
from tests.unit.adaptive_scheduler.worlds import cluster, node, running, speed_rows, waiting

PLANNED = Settings(systems=("elastic",))
PAPER = replace(PLANNED, planner="paper")
COMPLETION = replace(PLANNED, makespan_weight=0.0)
PROFILES = Profiles.from_rows([*speed_rows(), *speed_rows(gpu_type="P100", speed_up={1: 0.4, 2: 0.7, 4: 1.2})])
NOW = 500.0
LAST_SHORT_ONES = running("ends soon", 1, 9000, (1,)), waiting("short", 10_000, (1,), submit_s=NOW)
LONG = waiting("long", 100_000, (1,), submit_s=NOW)


def operations(decisions):
    return [one for one in decisions if not isinstance(one, Hold)]


def victims_of(decision):
    return {victim.job: victim.num_gpus for victim in getattr(decision, "victims", ())}


def taking(decision):
    count = len(victims_of(decision))
    return (" with a victim" if count == 1 else " with several victims") if count else ""


def draw_job(rng, name, nodes):
    state = rng.choice(("submitted", "submitted", "running", "running", "running", "adjusting", "initializing"))
    fields = {
        "optional": rng.choice(((1,), (2,), (1, 2), (2, 4), (1, 2, 4))),
        "submit_s": rng.choice((0.0, 100.0, 499.0)),
        "iterations_left": rng.choice((None, 0.0, 50.0, 2000.0, 2000.0, 1e4, 1e5)),
        "rigid": rng.random() < 0.2,
        "pinned": rng.choice((None, None, None, "n0")),
        "state_bytes": rng.choice((0.0, 15.7e9)),
    }
    if state == "submitted":
        gpu_type = rng.choice((None, None, None, "V100", "H100"))
        paused = {"busy": rng.random() < 0.1, "suspended": rng.random() < 0.1}
        return Job(name, "t", state, gpu_type=gpu_type, **paused, **fields)
    home = rng.choice(nodes)
    idle = [i for i, gpu in enumerate(home["gpus"]) if gpu.state == "idle"]
    counts = [count for count in fields["optional"] if count <= len(idle)]
    if not counts:
        return None
    num_gpus = rng.choice(counts)
    for i in idle[:num_gpus]:
        home["gpus"][i] = Gpu(home["gpus"][i].id, "in use", name)
    return Job(
        name, "t", state, num_gpus=num_gpus, node=home["name"], busy=state != "running",
        cooling_until=rng.choice((0.0, 0.0, NOW + 50)), wanted=rng.choice((None,) * 8 + (2,)), **fields,
    )  # fmt: skip


def draw_world(rng):
    nodes = [
        {"name": f"n{i}", "gpus": [Gpu(f"n{i}g{j}", rng.choice(("idle",) * 20 + ("faulty",))) for j in range(4)]}
        for i in range(rng.randint(1, 3))
    ]
    jobs = [draw_job(rng, f"j{i}", nodes) for i in range(rng.randint(3, 9))]
    built = tuple(
        Node(one["name"], rng.choice(("V100", "P100")), tuple(one["gpus"]), schedulable=rng.random() < 0.9)
        for one in nodes
    )
    return ClusterSnapshot(built, tuple(job for job in jobs if job), PROFILES)


def weighing(**makespan_weight_of_queue):
    return Shares({name: QueueShare(makespan_weight=weight) for name, weight in makespan_weight_of_queue.items()})


def with_weights(world, weight_of):
    return world.then(jobs=tuple(replace(job, weight=weight_of(job)) for job in world.jobs))


@pytest.mark.drawn
def test_whatever_the_cluster_its_decisions_can_be_carried_out_and_leave_alone_what_must_be(monkeypatch):
    # Each other plan is taken, however bad.
    monkeypatch.setattr(planner, "BETTER_BY", -1000.0)
    monkeypatch.setattr(planner, "_is_worse", lambda *_: False)
    rng = random.Random(7)
    rng_of_weights = random.Random(12)
    seen = Counter()
    for number in range(drawn(600, 6000)):
        monkeypatch.setattr(fluid, "MOST_ENDS", (1, 3, 200)[number % 3])
        world = draw_world(rng)
        if number % 2:
            world = replace(
                with_weights(world, lambda job: rng_of_weights.choice((0.001, 1.0, 1.0, 1000.0))),
                shares=weighing(default=rng_of_weights.choice((None, 0.0, 0.5, 1000.0))),
            )
        decisions = decide(world, NOW, PLANNED)
        check(world, decisions)
        assert decide(world, NOW, PLANNED) == decisions
        answered = Counter(one.job for one in decisions)
        assert all(answered[job.id] == 1 for job in world.queue)
        for one in decisions:
            assert one.explanation.sentence.endswith(".")
            if one.explanation.algorithm != planner.PLANNER:
                continue
            seen[type(one).__name__ + taking(one)] += 1
            if isinstance(one, Hold):
                continue
            job, home = world.job[one.job], world.node[one.node]
            assert home.open
            if not isinstance(one, Reshape):
                assert job.gpu_type in (None, home.gpu_type) and job.pinned in (None, home.name)
            for name in {one.job, *victims_of(one)}:
                touched = world.job[name]
                assert not touched.busy and touched.wanted is None and touched.cooling_until <= NOW
                assert not (touched.rigid and touched.num_gpus)
    for kind in ("Start", "Start with a victim", "Start with several victims", "Reshape", "Move", "Hold"):
        assert seen[kind] > 0, seen


def simulated(settings, jobs, gpus, shares=None):
    costs = Costs.in_place(DEFAULT_OVERHEADS)
    setup = PolicySetup("test", partial(decide, settings=settings), costs, PROFILES, settings)
    nodes = (node(idle=gpus),)
    workload = Workload("test", 0, tuple(jobs), nodes, (setup,), shares=shares or Shares())
    return SimulatedCluster(workload, setup).run()


def last_end(outcome):
    return max(job.finished_s for job in outcome.jobs)


def sum_of_completions(outcome):
    return sum(job.finished_s - job.given.arrival_s for job in outcome.jobs)


def test_a_long_rigid_job_is_not_left_to_the_end():
    """Ten jobs of 10,000 s and one of 100,000 s on two GPUs, one GPU each: at best they end in 100,000 s.

    It starts as early as the mean completion time does not suffer. At once would end all work after 100,000 s, but with
    a mean that is a third longer: only where the makespan counts more.
    """
    jobs = [Submission(f"short{i}", "t", 0.0, (1,), 10_000.0, 1) for i in range(10)]
    jobs.append(Submission("long", "t", 0.0, (1,), 100_000.0, 1))
    papers = simulated(PAPER, jobs, 2)
    planned = simulated(PLANNED, jobs, 2)
    assert last_end(papers) > 150_000
    assert last_end(planned) < 141_000
    assert sum_of_completions(planned) <= sum_of_completions(papers)
    assert last_end(simulated(replace(PLANNED, makespan_weight=2.0), jobs, 2)) < 1.05 * 100_000
    assert last_end(simulated(replace(PLANNED, makespan_weight=0.0), jobs, 2)) > 140_000
    assert last_end(simulated(PLANNED, jobs, 2, weighing(default=2.0))) < 1.05 * 100_000
    assert last_end(simulated(PLANNED, jobs, 2, weighing(default=0.0))) > 140_000


def test_it_says_what_each_plan_would_bring():
    world = cluster(*LAST_SHORT_ONES, LONG, idle=1, used=1)
    start = next(one for one in decide(world, NOW, PLANNED) if one.job == "long")
    assert isinstance(start, Start)
    assert start.explanation.sentence.startswith(
        "long starts on 1 GPU of a: with this plan (late jobs first) all known jobs end in "
    )
    assert "on average, with the paper's rules " in start.explanation.sentence
    chosen = start.explanation.candidates[0]
    assert chosen.rejected == "" and chosen.makespan_s < start.explanation.unchanged_makespan_s


def test_without_a_better_plan_the_papers_decisions_stay_as_they_are():
    world = cluster(running("r", 1, 9000, (1,)), waiting("w", optional=(1,)), idle=4, used=1)
    assert decide(world, NOW, PLANNED) == decide(world, NOW, PAPER)


@pytest.mark.parametrize(
    "change",
    [
        {"sla_s": 1e6},
        {"max_workers": 2},
        {"type": "never measured"},
    ],
    ids=["a deadline", "several hosts", "an unknown speed"],
)
def test_where_it_does_not_know_what_binds_the_papers_rules_decide(change):
    systems = ("elastic", "deadline")
    world = cluster(*LAST_SHORT_ONES, LONG, waiting("other", 100, (1,), **change), idle=1, used=1)
    papers = decide(world, NOW, Settings(systems=systems, planner="paper"))
    assert decide(world, NOW, Settings(systems=systems)) == papers


@pytest.mark.parametrize(("limit", "least"), [("LOOKS", 5), ("MOST_JOBS", 2)])
def test_plans_that_take_too_long_to_compare_give_way_to_the_papers(limit, least, monkeypatch):
    world = cluster(*LAST_SHORT_ONES, LONG, idle=1, used=1)
    papers = decide(world, NOW, PAPER)
    assert operations(decide(world, NOW, PLANNED)) != operations(papers)
    monkeypatch.setattr(planner, limit, least)
    decided = decide(world, NOW, PLANNED)
    assert [(one.job, type(one)) for one in decided] == [(one.job, type(one)) for one in papers]
    for one, paper in zip(decided, papers, strict=True):
        said = "" if isinstance(one, Hold) else f" {planner.NOT_COMPARED}"
        assert one.explanation.sentence == paper.explanation.sentence + said


def test_a_plan_that_costs_one_measure_for_the_other_is_not_taken():
    """Once the second GPU is free `long` would start there, so that all work ends sooner, but on average later."""
    world = cluster(running("r", 1, 20_000, (1,)), waiting("s", 10_000, (1,), submit_s=NOW), LONG, idle=1, used=1)
    assert [one.job for one in operations(decide(world, NOW, PLANNED))] == ["s"]
    for_makespan = replace(PLANNED, makespan_weight=3.0)
    assert [one.job for one in operations(decide(world, NOW, for_makespan))] == ["long"]


def in_a_sweep(makespan_weight, settings=PLANNED):
    """Decide on a short job and a long one of queue `sweep` that want the GPU that is idle; `r` is in `other`."""
    jobs = (
        running("r", 1, 20_000, (1,), queue="other"),
        waiting("s", 10_000, (1,), submit_s=NOW, queue="sweep"),
        waiting("long", 100_000, (1,), submit_s=NOW, queue="sweep"),
    )
    shares = weighing(other=None, sweep=makespan_weight)
    return operations(decide(replace(cluster(*jobs, idle=1, used=1), shares=shares), NOW, settings))


@pytest.mark.parametrize(("makespan_weight", "first"), [(None, "s"), (0.0, "s"), (1.0, "s"), (3.0, "long")])
def test_jobs_count_as_their_queue_weighs_the_measures(makespan_weight, first):
    assert [one.job for one in in_a_sweep(makespan_weight)] == [first]
    for_makespan = replace(PLANNED, makespan_weight=3.0)
    assert [one.job for one in in_a_sweep(makespan_weight, for_makespan)] == [
        "long" if first == "long" or makespan_weight is None else "s"
    ]


def test_a_plan_for_queues_with_different_weights_says_what_each_gets():
    (started,) = in_a_sweep(3.0)
    said = started.explanation.sentence
    assert "the 1 job whose queue has makespan_weight 1 ends in " in said
    assert "; the 2 jobs whose queue has makespan_weight 3 end in " in said
    assert started.explanation.algorithm == planner.PLANNER


def draw_planned(rng, monkeypatch, **of_job):
    """Yield worlds of which some are decided by a plan, and what is decided there."""
    monkeypatch.setattr(planner, "BETTER_BY", -1.0)
    planned = 0
    for _ in range(drawn(60, 600)):
        world = draw_world(rng)
        jobs = (replace(job, **{name: rng.choice(values) for name, values in of_job.items()}) for job in world.jobs)
        changed = world.then(jobs=tuple(jobs))
        decisions = decide(changed, NOW, PLANNED)
        yield changed, decisions
        planned += any(one.explanation.algorithm == planner.PLANNER for one in decisions)
    assert planned > 0


@pytest.mark.drawn
def test_a_queue_that_says_the_setting_itself_changes_nothing(monkeypatch):
    for world, _ in draw_planned(random.Random(9), monkeypatch, queue="ab"):
        unsaid, said = (decide(replace(world, shares=weighing(a=a, b=None)), NOW, PLANNED) for a in (None, 1.0))
        assert said == unsaid


def first_of_two(weight_of_long):
    """Return what starts on the GPU that is idle: a short job, or one of the same owner that is ten times as long."""
    jobs = (
        running("r", 1, 200_000, (1,), owner="ada"),
        waiting("short", 10_000, (1,), submit_s=NOW, owner="ada"),
        waiting("long", 100_000, (1,), submit_s=NOW, owner="ada", weight=weight_of_long),
    )
    (started,) = operations(decide(cluster(*jobs, idle=1, used=1), NOW, COMPLETION))
    return started


def test_a_job_that_counts_more_than_the_others_of_its_owner_comes_before_a_shorter_one():
    assert [first_of_two(weight).job for weight in (1.0, 5.0, 50.0)] == ["short", "short", "long"]
    assert " on average by their weights, with the paper's rules " in first_of_two(50.0).explanation.sentence


@pytest.mark.parametrize("settings", [PLANNED, COMPLETION], ids=["both measures", "mean completion"])
def test_nobody_passes_jobs_of_others_by_weights(settings):
    """Ada submits many jobs that count nothing, so that one other counts as much as all of them would."""
    jobs = [
        running("r", 1, 200_000, (1,), owner="ada"),
        running("b", 1, 200_000, (1,), owner="bob"),
        waiting("short", 10_000, (1,), submit_s=NOW, owner="bob"),
        waiting("long", 100_000, (1,), submit_s=NOW, owner="ada", weight=1000.0),
        *(waiting(f"a{i}", 150_000, (1,), submit_s=NOW, owner="ada", weight=0.001) for i in range(20)),
    ]
    assert [one.job for one in operations(decide(cluster(*jobs, idle=1, used=2), NOW, settings))] == ["short"]


@pytest.mark.drawn
def test_equal_weights_of_an_owner_change_nothing_however_large(monkeypatch):
    for world, decisions in draw_planned(random.Random(10), monkeypatch, owner="ab"):
        rich = with_weights(world, lambda job: 1000.0 if job.owner == "a" else 1.0)
        assert decide(rich, NOW, PLANNED) == decisions


@pytest.mark.parametrize(
    "never", [{"pinned": "b"}, {"optional": (4,)}], ids=["its node is closed", "too many of its GPUs are faulty"]
)
def test_plans_are_compared_beside_a_job_that_cannot_start_as_nodes_are(never):
    own = (*node(idle=1, used=1).gpus, Gpu("a2", "faulty"), Gpu("a3", "faulty"))
    jobs = *LAST_SHORT_ONES, LONG, waiting("stuck", 100, **never)
    world = cluster(*jobs, nodes=(Node("a", "V100", own), node("b", idle=1, schedulable=False)))
    decisions = {one.job: one for one in decide(world, NOW, PLANNED)}
    assert decisions["long"].explanation.algorithm == planner.PLANNER
    assert isinstance(decisions["stuck"], Hold)


def test_where_some_job_never_starts_no_plan_is_better_than_the_papers():
    """Its speed is known on GPUs that no open node has: what follows any plan is without an end."""
    profiles = Profiles.from_rows([*speed_rows(), *speed_rows(job_type="u", gpu_type="P100")])
    jobs = *LAST_SHORT_ONES, LONG, waiting("stuck", 100, type="u")
    closed = node("b", idle=1, gpu_type="P100", schedulable=False)
    world = cluster(*jobs, nodes=(node(idle=1, used=1), closed), profiles=profiles)
    for weight in (0.0, 1.0):
        papers = decide(world, NOW, replace(PAPER, makespan_weight=weight))
        assert decide(world, NOW, replace(PLANNED, makespan_weight=weight)) == papers


@pytest.mark.drawn
def test_no_plan_lets_a_job_grow_or_move_that_gains_less_than_the_setting_asks_for(monkeypatch):
    monkeypatch.setattr(planner, "BETTER_BY", -1000.0)
    monkeypatch.setattr(planner, "_is_worse", lambda *_: False)
    rng, seen = random.Random(8), Counter()
    for _ in range(drawn(200, 2000)):
        world = draw_world(rng)
        for factor in (1.0, 1e12):
            settings = replace(PLANNED, min_gain_factor=factor)
            changed = [one for one in operations(decide(world, NOW, settings)) if isinstance(one, Reshape | Move)]
            seen[factor] += sum(world.job[one.job].wanted is None for one in changed)
    assert seen[1.0] > 5 and seen[1e12] == 0


def test_a_long_queue_is_simulated_for_some_ends_and_then_estimated(monkeypatch):
    jobs = [waiting(f"w{i}", 1_000 * (1 + i % 7), (1, 2, 4), submit_s=NOW) for i in range(60)]
    world = read_cluster(cluster(*jobs, *FULL, idle=0, used=8), NOW, PLANNED)
    whole_budget, budget = fluid.Budget(10**6), fluid.Budget(10**6)
    whole = fluid.FluidPolicy(world, fluid.present_places(world), False, whole_budget).run()
    monkeypatch.setattr(fluid, "MOST_ENDS", 20)
    estimated = fluid.FluidPolicy(world, fluid.present_places(world), False, budget).run()
    assert 10**6 - budget.looks < 0.6 * (10**6 - whole_budget.looks)
    assert estimated.last_s == pytest.approx(whole.last_s, rel=0.15)
    assert estimated.sum_s == pytest.approx(whole.sum_s, rel=0.15)


def test_what_is_left_on_closed_nodes_is_estimated_too(monkeypatch):
    monkeypatch.setattr(fluid, "MOST_ENDS", 1)
    closed = replace(node("a", idle=0, used=8), schedulable=False)
    world = read_cluster(cluster(*FULL, nodes=(closed,)), NOW, PLANNED)
    outcome = fluid.FluidPolicy(world, fluid.present_places(world), False, fluid.Budget(10**6)).run()
    assert outcome.last_s == pytest.approx(max(one.here_s for one in world.jobs), rel=0.5)


def test_a_node_kept_for_an_aged_job_stays_kept():
    aged = waiting("aged", 1000, (8,), submit_s=-1e6)
    jobs = [waiting(f"short{i}", 10_000, (1,), submit_s=NOW) for i in range(5)]
    world = cluster(aged, *jobs, waiting("long", 100_000, (1,), submit_s=NOW), idle=2, used=6)
    assert not [one for one in operations(decide(world, NOW, PLANNED)) if isinstance(one, Start | Reshape | Move)]


FULL = [running(name, 2, 20_000, (1, 2)) for name in ("a", "b", "c", "d")]
SHORT_AND_LARGE = waiting("new", 2_000, (4,), submit_s=NOW)


def test_a_newcomer_that_no_single_job_can_make_room_for_takes_from_several():
    world = cluster(*FULL, SHORT_AND_LARGE, idle=0, used=8)
    assert operations(decide(world, NOW, PAPER)) == []
    (start,) = operations(decide(world, NOW, PLANNED))
    assert (start.job, start.num_gpus) == ("new", 4)
    assert victims_of(start) == {"a": 1, "b": 1, "c": 1, "d": 1}
    taken = "new starts on 4 GPUs of a, and a keeps 1, and b keeps 1, and c keeps 1, and d keeps 1: "
    assert start.explanation.sentence.startswith(taken)


def test_of_several_victims_none_gives_what_is_not_needed(monkeypatch):
    """Three GPUs are missing: with the two of the large job, one of the two small ones gives too much."""
    monkeypatch.setattr(planner, "knapsack_plan", lambda *_: [])  # it would take from `a`
    monkeypatch.setattr(planner, "_is_worse", lambda *_: False)
    small = [running(name, 2, 3_000, (1, 2)) for name in ("a", "b")]
    large = running("large", 4, 20_000, (1, 2, 4))
    world = cluster(*small, large, SHORT_AND_LARGE, idle=1, used=8)
    (start,) = operations(decide(world, NOW, PLANNED))
    assert victims_of(start) == {"b": 1, "large": 2}


def test_it_takes_from_no_job_that_ends_before_the_newcomer_would():
    world = cluster(*FULL[:3], running("d", 2, 1_000, (1, 2)), SHORT_AND_LARGE, idle=0, used=8)
    assert operations(decide(world, NOW, PLANNED)) == []
