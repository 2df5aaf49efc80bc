"""Promise: the arrays hold what `prediction.py` says, to the last bit, also when only what changed is worked out anew.

Which way the search then takes is compared with the literal search in `test_exact_search.py`.
"""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler.candidates import LISTED, reshape_obstacle
from adaptive_scheduler.cost_table import CostTable, smallest
from adaptive_scheduler.decision import placed_on
from adaptive_scheduler.index import removable_counts
from adaptive_scheduler.models.prediction import RemainingTimes, t_keep, t_run
from adaptive_scheduler.policies.elastic.algorithms import schedule_incoming, schedule_running
from adaptive_scheduler.policies.elastic.expand import growth_candidates
from adaptive_scheduler.policies.elastic.shrink import incoming_candidates
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import Worker
from adaptive_scheduler.tentative_snapshot import after
from tests.unit.adaptive_scheduler.test_engine import choices, snapshots
from tests.unit.adaptive_scheduler.worlds import cluster, node, running, waiting

NOW = 50.0


@given(snapshots(), choices)
def test_every_remaining_time_is_that_of_the_formulas(snapshot, chosen):
    times = CostTable(snapshot, NOW, chosen).times
    expected = RemainingTimes.estimate(snapshot)
    assert times.seconds == expected.seconds
    assert (times.max, times.runner_up, times.sum) == (expected.max, expected.runner_up, expected.sum)
    kinds = {n.name: n.gpu_type for n in snapshot.nodes}
    assert expected.seconds == {j.id: t_keep(snapshot.profiles, j, kinds.get(j.node, "")) for j in snapshot.placed}


@given(snapshots(), choices, st.sampled_from([0.0, 40.0, 3000.0]))
def test_whoever_may_be_reshaped_gives_what_it_can_on_each_of_its_hosts_and_takes_as_long_as_predicted(
    snapshot, chosen, trains_on_s
):
    found = CostTable(snapshot, NOW, chosen).victims(trains_on_s)
    got = {
        (snapshot.jobs[row].id, snapshot.nodes[n].name, gives): seconds
        for row, n, gives, seconds in zip(*map(np.ndarray.tolist, found[:4]), strict=True)
        if row >= 0
    }
    expected = {
        (job.id, host.node, gives): t_run(
            snapshot.profiles, job, snapshot.node[host.node].gpu_type, job.num_gpus - gives, trains_on_s,
            len(job.workers) or 1,
        )
        for job in snapshot.placed
        if not reshape_obstacle(job, NOW)
        for host in placed_on(job)
        if host.node in snapshot.node
        for gives in removable_counts(job, chosen)
        if gives < host.num_gpus
    }  # fmt: skip
    assert got == expected


@given(snapshots(), choices)
def test_a_table_that_comes_of_another_finds_what_a_new_one_finds(snapshot, chosen):
    table = CostTable(snapshot, NOW, chosen)
    for _ in range(4):
        answers = [schedule_incoming(snapshot, job, NOW, chosen, table) for job in snapshot.queue]
        grown = schedule_running(snapshot, NOW, chosen, table)
        assert grown == schedule_running(snapshot, NOW, chosen)
        assert answers == [schedule_incoming(snapshot, job, NOW, chosen) for job in snapshot.queue]
        snapshot = after(snapshot, *answers[:1], *([grown] if grown and not answers else []))
        table = table.then(snapshot)


def test_a_table_of_other_jobs_or_nodes_is_worked_out_from_the_beginning():
    world = cluster(running("a", 1), waiting(), nodes=(node("a", idle=1, used=1), node("b", idle=1)))
    table = CostTable(world, NOW, Settings())
    assert table.times.seconds.keys() == {"a"}
    more = replace(world, jobs=(running("b", 2, node="b"), *world.jobs), nodes=world.nodes[::-1])
    for job in more.queue:
        assert schedule_incoming(more, job, NOW, Settings(), table) == schedule_incoming(more, job, NOW, Settings())


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), max_size=30),
    st.integers(0, 12),
)
def test_the_smallest_cells_come_in_order_and_of_equal_ones_the_first(rows, most):
    columns = [np.array([row[i] for row in rows]).__getitem__ for i in range(3)]
    got = smallest(np.arange(len(rows)), columns, most)
    assert got.tolist() == sorted(range(len(rows)), key=lambda cell: (rows[cell], cell))[:most]


def test_candidates_that_are_not_listed_are_counted():
    nodes = [node(f"n{i:02}", idle=2, used=2) for i in range(40)]
    jobs = [running(f"r{i:02}", 2, 5000 + i, node=f"n{i:02}") for i in range(40)]
    world = cluster(*jobs, waiting(optional=(1, 2, 3, 4)), nodes=nodes)
    table = CostTable(world, NOW, Settings())
    found = incoming_candidates(table, world.job["new"])
    assert len(found.candidates) == LISTED
    # On each of 40 nodes: 1 or 2 idle GPUs; 3 with one of the job there; 4, which nobody makes up for.
    assert found.more == 40 * 4 - LISTED
    grown = growth_candidates(table)
    assert (len(grown.candidates), grown.more) == (40, 0)  # each to 4 GPUs


def test_a_job_of_unknown_length_measured_only_on_two_hosts_is_assumed_to_take_as_long_as_it_has():
    row = {"job_type": "u", "gpu_type": "V100", "num_gpus": 4, "seconds_per_iteration": 0.5, "hosts": 2}
    job = running("j", 4, None, type="u", running_s=900.0, workers=(Worker("a", 2), Worker("b", 2)), max_workers=2)
    world = cluster(job, nodes=(node("a", used=2), node("b", used=2)), profiles=Profiles.from_rows([row]))
    assert RemainingTimes.estimate(world).max == CostTable(world, NOW, Settings()).times.max == 900 + 5 + 7 + 54
