"""Decisions on a snapshot that takes over what an earlier one has found are those on one that knows nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.engine import decide
from adaptive_scheduler.models.prediction import of_unknown_end
from adaptive_scheduler.profiles.growth import Growth
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node
from tests.unit.adaptive_scheduler.any_world import NOW, PROFILES, drawn
from tests.unit.adaptive_scheduler.worlds import cluster, running, waiting

CHANGES = (
    {"target_reached": True}, {"wanted": 1}, {"wanted": None}, {"state": "submitted", "num_gpus": 0, "node": None},
    {"expected_s": 1.0, "task_s": 1e6}, {"expected_s": None}, {"busy": True}, {"busy": False}, {"sla_s": 60.0},
)  # fmt: skip


OF_COSTS = (
    {"iterations_left": 123.0}, {"iterations_left": None}, {"running_s": 4000.0}, {"unsaved_s": 7.0}, {"type": "cheap"},
    {"reshape_cost_s": 3.0}, {"reshape_cost_s": None}, {"relaunches": True}, {"cooling_until": NOW + 20},
    {"workers": ()}, {"grew_from": 1}, {"gpu_type": "V100"}, {"pinned": "n0"}, {"max_workers": 3},
    {"growth": Growth("CC")}, {"optional": (1, 3, 8)}, {"node": "n0", "workers": ()}, {"node": "gone"}, {"rigid": True},
    {"state": "running"}, *CHANGES,
)  # fmt: skip
OTHER_PROFILES = replace(PROFILES, overhead_rows={}, _extrapolated={})


def changed(rng: random.Random, jobs: list[Job], all_jobs: tuple[Job, ...], changes: Any = CHANGES) -> list[Job]:
    """Some jobs otherwise, gone, back, or in another order."""
    for i in rng.sample(range(len(jobs)), min(len(jobs), rng.randrange(3))):
        jobs[i] = replace(jobs[i], **rng.choice(changes))
    jobs = [job for job in jobs if rng.random() < 0.9]
    there = {job.id for job in jobs}
    jobs += [job for job in all_jobs if job.id not in there and rng.random() < 0.3]
    return rng.sample(jobs, len(jobs)) if rng.random() < 0.2 else jobs


@pytest.mark.parametrize("seed", range(12))
def test_through_any_history_the_decisions_are_those_on_a_snapshot_made_from_nothing(seed: int) -> None:
    rng, (first, settings) = random.Random(seed), drawn(seed)
    later, nodes = first, first.nodes
    for _ in range(12):
        nodes = tuple(replace(n, heard=rng.random() < 0.9) for n in nodes) if rng.random() < 0.3 else nodes
        later = later.then(nodes=nodes, jobs=tuple(changed(rng, list(later.jobs), first.jobs)))
        fresh = ClusterSnapshot(later.nodes, later.jobs, later.profiles, later.observations)
        assert decide(later, NOW, settings) == decide(fresh, NOW, settings)
        assert (later.queue, later.placed, later.on_cpu) == (fresh.queue, fresh.placed, fresh.on_cpu)


def otherwise(rng: random.Random, nodes: list[Node]) -> list[Node]:
    """Some nodes otherwise, gone, or in another order."""
    i = rng.randrange(len(nodes))
    gpus = tuple(replace(g, state=rng.choice(("idle", "in use", "faulty"))) for g in nodes[i].gpus)
    change = rng.choice((
        {"heard": False}, {"heard": True}, {"schedulable": False}, {"kept_for": "g0"}, {"kept_for": None},
        {"gpus": gpus}, {"gpus": (*gpus, Gpu("new")), "gpu_type": "K80"}, {"gpus": (), "gpu_type": ""},
        {"gpu_type": "V100"}, {"cores": 9.0},
    ))  # fmt: skip
    nodes[i] = replace(nodes[i], **change)
    nodes = [node for node in nodes if rng.random() < 0.95] or nodes
    return rng.sample(nodes, len(nodes)) if rng.random() < 0.1 else nodes


def told(table: CostTable) -> dict[str, Any]:
    """All that a table says, without the numbers that its index gives to names."""
    nodes, jobs, index, rows = table.nodes, table.jobs._asdict(), table.index, range(len(table.snapshot.jobs))
    types, counts, kinds = [*index.types], [*index.counts], [*index.kinds, None]
    placed = [i for i in rows if jobs["placed"][i]]
    return {
        **{name: column.tolist() for name, column in table.victims(40.0)._asdict().items()},
        **{name: np.nan_to_num(jobs[name], nan=-7.0).tolist() for name in jobs.keys() - NUMBERED},
        "types": [(types[table.ints("here")[i]], types[table.ints("alone")[i]]) for i in placed],
        "counts": [counts[table.ints("count_id")[i]] for i in placed],
        "only": [kinds[table.ints("only")[i]] for i in placed],
        "larger": [{*index.larger[table.ints("shape")[i]].tolist()} - {0} for i in placed],
        "nodes": [column.tolist() for column in nodes[:-1]], "kinds": [kinds[k] for k in nodes.kind],
        "at": [table.nodes_for(job).tolist() for job in table.snapshot.jobs], "rank": table.node_rank.tolist(),
        "times": table.times.seconds, "tardiness": table.tardiness.late, "keep": table.keep_s.tolist(),
        "work": (table.all_work_s, table.times.sum, table.times.max, table.times.runner_up),
    }  # fmt: skip


NUMBERED = {"shape", "here", "alone", "count_id", "only"}


@pytest.mark.parametrize("seed", range(40))
def test_through_any_history_a_table_that_takes_over_rows_says_what_one_made_from_nothing_does(seed: int) -> None:
    rng, (first, settings) = random.Random(f"costs {seed}"), drawn(seed)
    later, now = first, NOW
    for _ in range(12):
        nodes = tuple(otherwise(rng, list(later.nodes))) if rng.random() < 0.4 else later.nodes
        profiles: Profiles = rng.choice((PROFILES, OTHER_PROFILES)) if rng.random() < 0.2 else later.profiles
        jobs = tuple(changed(rng, list(later.jobs), first.jobs, OF_COSTS))
        later, now = later.then(nodes=nodes, jobs=jobs, profiles=profiles), now + rng.choice((0.0, 15.0))
        fresh = ClusterSnapshot(later.nodes, later.jobs, later.profiles, later.observations)
        assert told(CostTable(later, now, settings)) == told(CostTable(fresh, now, settings))
        assert (later.capacity, of_unknown_end(later)) == (fresh.capacity, of_unknown_end(fresh))


def test_only_jobs_that_have_changed_are_tested_again() -> None:
    tested = list[str]()

    def waits(job: Job) -> bool:
        tested.append(job.id)
        return job.state == "submitted"

    one, two, three = running("one", 1), running("two", 1), waiting("three")
    before = cluster(one, two, three)
    assert before.where(waits) == (three,)
    tested.clear()
    changed_two = waiting("two")
    assert before.then(jobs=(one, changed_two, three)).where(waits) == (changed_two, three)
    assert before.then(jobs=(three, one)).where(waits) == (three,)
    assert tested == ["two"]
    assert before.where(waits) == (three,)
