"""`reshape what-if`: it foretells what then happens, with each change, and touches nothing."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptive_scheduler.decision import Decision, Explanation
from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.evictions import DRAIN, FAULT, schedule_evictions
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.shares import Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from coordinator.api.snapshot_view import snapshot_view
from coordinator.errors import Rejected
from coordinator.forecasts import forecast as forecast_module
from coordinator.forecasts.forecast import Forecast, forecast
from coordinator.forecasts.live_state import TABLES, LiveState
from coordinator.forecasts.what_if import WhatIf, compare
from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from reshape.output.forecast_table import as_table
from tests.depth import drawn
from tests.fakes.coordinator_api import Live
from tests.fakes.shims import Behaviour
from tests.fakes.terminal import Output
from tests.fakes.world import GPU_TYPE, JOB_TYPE, World
from tests.unit.adaptive_scheduler import any_world
from tests.unit.adaptive_scheduler.shared_world import queues, waits, world
from tests.unit.adaptive_scheduler.worlds import OVERHEADS, SPEED_UP, cluster, node, running, speed_rows, waiting

WITHIN = 0.10  # twice what is promised of the demo
TWO = {
    "job_id": "two",
    "command": ["python", "t.py"],
    "optional_num_gpus": [2],
    "iterations": 100,
    "job_type": JOB_TYPE,
}
Run = Callable[..., Output]


def seen(world: World) -> LiveState:
    """As a client reads it."""
    profiles = Profiles.from_rows(*(world.api.profiles.profiles(table) for table in TABLES))
    return LiveState.read(json.loads(json.dumps(world.api.simulations.snapshot())), profiles)


def training(**behaviour: Any) -> World:
    """Job one has trained for a while on four GPUs, of which it can give two."""
    world = World()
    world.submit("one", [2, 4], Behaviour(iterations=400, **behaviour))
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.pass_time(20.0)
    return world


def ends(found: Forecast) -> dict[str, float | None]:
    return {job.job_id: job.end_s for job in found.jobs}


def really(world: World) -> dict[str, float]:
    """When all jobs have ended, in seconds from now."""
    began = world.clock.wall()
    world.run(World.at_rest)
    return {name: world.job(name).finish_ts - began for name in world.states()}


def test_it_foretells_when_a_submitted_job_and_its_victim_end() -> None:
    world = training()
    found = forecast(seen(world).with_jobs([TWO]))
    world.submit("two", [2], Behaviour(iterations=100))
    came = really(world)
    assert ends(found) == {name: pytest.approx(end_s, rel=WITHIN) for name, end_s in came.items()}
    assert found.makespan_s == pytest.approx(max(came.values()), rel=WITHIN)
    started = next(job.start_s for job in found.jobs if job.job_id == "two")
    assert started == pytest.approx(world.job("two").doc["start_ts"] - world.job("two").submit_ts, abs=1.5)


def test_asked_in_the_middle_of_a_reshape_it_foretells_the_rest() -> None:
    world = training()
    world.submit("two", [2], Behaviour(iterations=100))
    world.run(lambda w: w.states() == {"one": s.ADJUSTING, "two": s.INITIALIZING})
    found = forecast(seen(world))
    assert found.makespan_s == pytest.approx(max(really(world).values()), rel=WITHIN)


@pytest.mark.parametrize(("again", "starts"), [({}, 83 + 5 + 7 + 25), ({"proc_restart": 3}, 83 + 22 + 5 + 7 + 3)])
def test_a_newcomer_imports_before_it_gets_its_gpus_where_its_type_restarts_without_that(
    again: dict[str, int], starts: float
) -> None:
    """So the victim trains on for longer, and the GPUs idle for as long as a restart takes."""
    costs = Profiles.from_rows(speed_rows(), [{"job_type": "t", **OVERHEADS, **again}])
    four = replace(node("a", used=4), gpus=tuple(replace(g, job="one") for g in node("a", used=4).gpus))
    one, two = running("one", 4, left=4000, optional=(1, 2, 4)), waiting("two", left=1000, optional=(2,))
    jobs = {job.job_id: job for job in forecast(of(cluster(one, two, nodes=(four,), profiles=costs))).jobs}
    assert jobs["two"].start_s == pytest.approx(starts)
    assert jobs["two"].end_s == pytest.approx(starts + 1000 / 1.7 + 5 + 7)


def test_it_foretells_a_queue() -> None:
    world = World.training([4], Behaviour(iterations=200))
    for name, iterations in (("a", 300), ("b", 100)):
        world.submit(name, [4], Behaviour(iterations=iterations))
    world.tick()
    found = forecast(seen(world))
    order = [name for name, _ in sorted(ends(found).items(), key=lambda pair: pair[1] or math.inf)]
    assert order == ["one", "b", "a"], "the shortest first"
    assert found.makespan_s == pytest.approx(max(really(world).values()), rel=WITHIN)


def test_nothing_is_touched_by_asking() -> None:
    world = training()
    before = world.store.writes
    view = world.api.jobs.job("one")
    forecast(seen(world).with_jobs([TWO]).drained("n1"))
    assert world.store.writes == before
    assert world.api.jobs.job("one") == view


FULL = cluster(
    running("one", 4, optional=(4,), left=600), waiting("new", optional=(4,), left=600),
    nodes=(replace(node("a", used=4), gpus=tuple(replace(g, job="one") for g in node("a", used=4).gpus)),),
)  # fmt: skip


def of(snapshot: ClusterSnapshot, settings: Settings | None = None) -> LiveState:
    return LiveState(snapshot, settings or Settings())


def test_more_gpus_start_a_waiting_job_at_once() -> None:
    before, after = forecast(of(FULL)), forecast(of(FULL).with_gpus(4, "V100"))
    starts = [next(job.start_s for job in found.jobs if job.job_id == "new") for found in (before, after)]
    assert starts[0] is not None and starts[1] == pytest.approx(83.0 + 25.0), "launch and start of the profile"
    assert starts[1] < starts[0] and (after.makespan_s or 0) < (before.makespan_s or 0)


def test_gpus_of_a_new_type_come_on_a_node_of_their_own() -> None:
    snapshot = of(FULL).with_gpus(2, "T4").snapshot
    assert [(n.name, n.gpu_type, n.idle) for n in snapshot.nodes] == [("a", "V100", 0), ("added-T4", "T4", 2)]


def test_only_idle_gpus_are_taken_away() -> None:
    half = cluster(waiting(optional=(2,)), idle=4, used=0)
    assert sum(n.idle for n in of(half).with_gpus(-2, "V100").snapshot.nodes) == 2
    with pytest.raises(Rejected, match=r"Only 4 V100 are idle, so 5 cannot be taken away; drain a node."):
        of(half).with_gpus(-5, "V100")


def test_a_drained_nodes_jobs_move_as_a_drain_moves_them_and_what_cannot_trains_on_there() -> None:
    gpus = tuple(replace(g, job="one") for g in node("a", used=4).gpus)
    jobs = running("one", 4, optional=(4,), left=100, iterations_done=500.0)
    two = cluster(jobs, nodes=(replace(node("a", used=4), gpus=gpus), node("b", idle=4)))
    stays, moves = forecast(of(two)).makespan_s, forecast(of(two).drained("a")).makespan_s
    assert stays is not None and moves is not None and moves > stays
    rigid = of(replace(two, jobs=(replace(jobs, rigid=True),)))
    assert forecast(rigid.drained("a")).makespan_s == pytest.approx(stays), "it is not stopped"
    smaller = replace(jobs, optional=(2, 4))
    half = cluster(smaller, nodes=(replace(node("a", used=4), gpus=gpus), node("b", idle=2)))
    shrinks = forecast(of(half).drained("a")).makespan_s
    assert shrinks is not None and shrinks > moves
    with pytest.raises(Rejected, match=r"There is no node 'c'; there are: a, b."):
        of(two).drained("c")


def training_beside_a_small_node() -> tuple[World, Behaviour]:
    """Job one trains on both GPUs of its node; on the other node the only one is in use for a while."""
    world = World(gpus=2, nodes=[FoundNode("small", (FoundGpu("small-0", GPU_TYPE, None, True),))])
    world.submit("short", [1], Behaviour(iterations=50), elastic=False, node="small")
    world.run(lambda w: w.states() == {"short": s.RUNNING})
    behaviour = Behaviour(iterations=400, sick=set())
    world.submit("one", [1, 2], behaviour)
    world.run(lambda w: w.states() == {"one": s.RUNNING, "short": s.RUNNING})
    world.pass_time(5.0)
    return world, behaviour


def is_foretold_until_it_has_moved(world: World, algorithm: str) -> None:
    """Job one has to leave, cannot yet, and is foretold to end as it then does, on one GPU in place of two."""
    assert (world.job("one").operation, world.job("one").node) == (None, "n1")
    assert "no other node has 1 or 2 idle GPUs" in world.job("one").doc["message"]
    found = ends(forecast(seen(world)))
    came = really(world)
    (moved,) = [d for d in world.api.history.decisions("one", 50) if d["kind"] == "move"]
    assert (moved["algorithm"], moved["node"]) == (algorithm, "small")
    assert found == {name: pytest.approx(end_s, rel=WITHIN) for name, end_s in came.items()}


def test_a_job_on_a_drained_node_is_foretold_to_move_as_soon_as_it_can() -> None:
    world, _ = training_beside_a_small_node()
    world.api.drains.drain("n1", True)
    world.tick()
    is_foretold_until_it_has_moved(world, DRAIN)


def test_a_job_of_which_no_gpu_is_well_is_foretold_to_move_as_soon_as_it_can() -> None:
    world, behaviour = training_beside_a_small_node()
    behaviour.sick = {"gpu-0", "gpu-1"}
    world.run(lambda w: w.gpu("gpu-0").faulty and w.gpu("gpu-1").faulty, 30)
    is_foretold_until_it_has_moved(world, FAULT)


def test_a_job_that_shrinks_around_a_faulty_gpu_keeps_the_others_which_nobody_else_gets() -> None:
    gpus = tuple(replace(gpu, job="one", held_by="one") for gpu in node("a", used=4).gpus)
    sick = (replace(gpus[0], state="faulty"), *gpus[1:])
    given = cluster(
        running("one", 4, left=2_000), waiting("new", optional=(2,), left=1e6), nodes=(Node("a", "V100", sick),)
    )
    found = {job.job_id: job for job in forecast(of(given, Settings(systems=()))).jobs}
    ends_s, starts_s = found["one"].end_s, found["new"].start_s
    assert ends_s == pytest.approx(2_000 / SPEED_UP[2], rel=WITHIN), "on two of the three that are well"
    assert starts_s is not None and ends_s is not None and starts_s > ends_s, "until then one GPU is left"


def test_a_suspended_job_gives_its_gpus_up_and_never_ends_unless_that_would_lose_work() -> None:
    jobs = (replace(job, suspended=job.id == "one") for job in FULL.jobs)
    given = replace(FULL, jobs=tuple(jobs))
    found = forecast(of(given))
    assert ends(found)["one"] is None and ends(found)["new"] is not None
    rigid = replace(given, jobs=tuple(replace(job, rigid=True) for job in given.jobs))
    assert ends(forecast(of(rigid))) == ends(forecast(of(FULL))), "it trains on"


def what(decisions: Iterable[Decision]) -> list[Any]:
    """The decisions without the times of their candidates, which progress since the last report changes."""
    return [replace(one, explanation=Explanation("", one.explanation.sentence)) for one in decisions]


@pytest.mark.parametrize("seed", range(drawn(60, 1_000)))
def test_what_must_leave_is_foretold_as_it_is_decided(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first moment of a forecast decides on the same evictions as the live scheduler, with the same sentences."""
    snapshot, settings = any_world.drawn(seed)
    live = of(_with_what_must_leave(snapshot, seed), settings).as_of(any_world.NOW, {})
    asked = list[ClusterSnapshot]()

    def asking(given: ClusterSnapshot, now: float, settings: Settings) -> tuple[Decision, ...]:
        asked.append(given)
        return decide(given, now, settings)

    monkeypatch.setattr(forecast_module, "decide", asking)
    forecast(live, lambda: False)
    foretold = what(schedule_evictions(asked[0], 0.0, settings)) if asked else []
    assert foretold == what(schedule_evictions(live.snapshot, 0.0, settings))
    firsts = what(decide(live.snapshot, 0.0, settings))[: len(foretold)]
    assert firsts == foretold, "the live scheduler begins with them"


def _with_what_must_leave(snapshot: ClusterSnapshot, seed: int) -> ClusterSnapshot:
    """Jobs on GPUs only, some of them suspended, some of their nodes drained, some of their GPUs faulty.

    Their speeds are known: a forecast assumes those that are not, by which a live scheduler does not decide.
    """
    rng = random.Random(f"leaves {seed}")
    jobs = tuple(
        replace(job, type="known", busy=job.busy and job.state != "running", suspended=rng.random() < 0.2)
        for job in snapshot.jobs if not job.uses_cpu and job.iterations_left != 0.0  # else it ends at this moment
    )  # fmt: skip
    nodes = list[Node]()
    for one in snapshot.nodes:
        gpus = tuple(replace(gpu, state="faulty") if gpu.job and rng.random() < 0.2 else gpu for gpu in one.gpus)
        is_drained = rng.random() < 0.3
        nodes.append(replace(one, gpus=gpus, drained=is_drained, schedulable=one.schedulable and not is_drained))
    return replace(snapshot, nodes=tuple(nodes), jobs=jobs)


def test_who_can_never_start_never_ends() -> None:
    found = forecast(of(FULL).drained("a"))
    assert ends(found) == {"one": ends(forecast(of(FULL)))["one"], "new": None}, "where nothing is idle it trains on"
    assert (found.makespan_s, found.mean_completion_s) == (None, None)
    shown = as_table(WhatIf(forecast(of(FULL)), found))
    assert "never" in shown and "Makespan: 10 min 20 s" in shown and "then never reached" in shown


def test_another_deadline_is_kept_or_missed() -> None:
    kept, missed = (forecast(of(FULL).with_deadline("new", seconds)) for seconds in (1e6, 10.0))
    assert (kept.missed, missed.missed) == (0, 1)
    assert "kept" in as_table(WhatIf(kept, None)) and "missed by" in as_table(WhatIf(missed, None))
    with pytest.raises(Rejected, match="no job 'x' on GPUs"):
        of(FULL).with_deadline("x", 1.0)


@pytest.mark.parametrize(
    ("doc", "why"),
    [
        ({"command": ["x"], "optional_num_gpus": []}, "would not be accepted: optional_num_gpus must be a list"),
        ({"job_id": "one", "command": ["x"], "optional_num_gpus": [1]}, "There is a job one already"),
        ({"command": ["x"], "num_gpus": 0}, "only jobs on GPUs are simulated"),
    ],
)
def test_a_job_that_cannot_be_simulated_is_refused_with_a_sentence(doc: dict[str, Any], why: str) -> None:
    with pytest.raises(Rejected, match=why):
        of(FULL).with_jobs([doc])


@pytest.mark.parametrize(("weight", "first"), [(1, "short"), (50, "long")])
def test_a_job_is_simulated_with_the_weight_of_its_document(weight: float, first: str) -> None:
    for_completion = Settings(makespan_weight=0.0)
    busy = cluster(running("one", 1, optional=(1,), left=200_000), idle=1, used=1)
    doc = {"command": ["x"], "job_type": "t", "optional_num_gpus": [1]}
    short = {**doc, "job_id": "short", "iterations": 10_000}
    long = {**doc, "job_id": "long", "iterations": 100_000, "weight": weight}
    found = {
        one.job_id: one.start_s for one in forecast(of(busy, settings=for_completion).with_jobs([short, long])).jobs
    }
    assert min(("short", "long"), key=lambda name: found[name]) == first


def test_unknown_lengths_and_speeds_are_assumed_as_the_scheduler_does_and_marked() -> None:
    odd = cluster(
        running("one", 4, optional=(4,), left=None), waiting("new", type="unheard-of", optional=(4,), left=10),
        waiting("sure", optional=(4,), left=10), nodes=FULL.nodes,
    )  # fmt: skip
    found = forecast(of(odd))
    assert {job.job_id: job.guess for job in found.jobs} == {"one": True, "new": True, "sure": False}
    assert ends(found)["one"] == pytest.approx(600.0 + 12.0), "ten minutes at least"
    assert "~ rests on a length or a speed that is not known" in as_table(WhatIf(found, None))


@pytest.mark.parametrize("seed", range(drawn(60, 1_000)))
def test_a_client_reads_what_the_coordinator_sees(seed: int) -> None:
    snapshot, settings = any_world.drawn(seed)
    view = json.loads(json.dumps(snapshot_view(snapshot, 0.0, settings, False, {})))
    read = LiveState.read(view, snapshot.profiles)
    plain = Job("", "", "submitted", ())
    unneeded: Any = {"growth": plain.growth, "efficiency": plain.efficiency}
    assert read.settings == settings
    assert read.snapshot.nodes == snapshot.nodes
    assert read.snapshot.jobs == tuple(replace(job, **unneeded) for job in snapshot.jobs if not job.uses_cpu)


@pytest.mark.parametrize("seed", range(drawn(60, 1_000)))
def test_any_live_state_can_be_simulated(seed: int) -> None:
    snapshot, settings = any_world.drawn(seed)
    view = json.loads(json.dumps(snapshot_view(snapshot, any_world.NOW, settings, False, {})))
    found = forecast(LiveState.read(view, snapshot.profiles))
    assert {job.job_id for job in found.jobs} == {job.id for job in snapshot.jobs if not job.uses_cpu}
    assert all(job.end_s is None or job.end_s >= 0.0 for job in found.jobs)


def two_teams(**of_users: Any) -> LiveState:
    """Two jobs of two queues that could both use three of four GPUs."""
    terms = Shares(queues(vision={}, nlp={}))
    more = {"submit_s": -10.0, "iterations_left": 50_000.0}
    jobs = [waits("v", "vision/ada", (1, 2, 3), **more), waits("n", "nlp/bob", (1, 2, 3), **more)]
    return LiveState(world(4, *jobs, shares=terms), Settings())


def test_a_queue_of_more_weight_would_be_done_sooner() -> None:
    found = compare(two_teams(), weights=[("vision", 3.0)])
    assert found.then is not None
    before = ends(found.now)
    after = ends(found.then)
    assert (after["v"] or math.inf) < (before["v"] or 0.0)
    assert (after["n"] or 0.0) > (before["n"] or math.inf)


def test_so_would_be_a_user_against_others_of_the_queue() -> None:
    jobs = (replace(job, queue="vision") for job in two_teams().snapshot.jobs)
    live = replace(two_teams(), snapshot=replace(two_teams().snapshot, jobs=tuple(jobs)))
    found = compare(live, weights=[("ada", "3")])
    assert found.then is not None
    assert (ends(found.then)["v"] or math.inf) < (ends(found.now)["v"] or 0.0)


@pytest.mark.parametrize(
    ("name", "weight", "why"),
    [
        ("speech", 2.0, "There is no queue or user 'speech'; there are: ada, bob, nlp, vision."),
        ("vision", "much", "'vision=much' is no name and weight; write QUEUE=2, or USER=2."),
        ("vision", -1.0, "'vision=-1.0' is no name and weight; write QUEUE=2, or USER=2."),
        ("vision", math.nan, "'vision=nan' is no name and weight; write QUEUE=2, or USER=2."),
        ("ada", 0.0, "ada is a user, and the weight of a user must be above 0; only a queue may have 0."),
    ],
)
def test_a_weight_of_nobody_or_that_is_none_is_refused(name: str, weight: str | float, why: str) -> None:
    with pytest.raises(Rejected) as refused:
        compare(two_teams(), weights=[(name, weight)])
    assert str(refused.value) == why


# the command


@pytest.fixture
def served(live: Live, monkeypatch: pytest.MonkeyPatch) -> World:
    """Its state is what the coordinator answers with."""
    world = training()
    monkeypatch.setattr(live.coordinator, "snapshot", world.api.simulations.snapshot)
    for table in TABLES:
        live.coordinator.tables[table] = world.api.profiles.profiles(table)
    return world


def test_the_command_sets_what_would_happen_beside_what_happens(reshape: Run, served: World, tmp_path: Path) -> None:
    file = tmp_path / "two.json"
    file.write_text(json.dumps(TWO))
    shown = reshape("what-if", "--submit", str(file), "--gpus", "+2", "V100", "--deadline", "one=90m")
    assert shown.code == 0, shown.err
    assert "THEN ENDS" in shown.out and "Makespan: " in shown.out and "kept" in shown.out
    answer = json.loads(reshape("-o", "json", "what-if", "--gpus", "+2", "V100", "--policy", "default").out)
    assert [job["job_id"] for job in answer["then"]["jobs"]] == ["one"]
    assert answer["now"]["makespan_s"] == pytest.approx(really(served)["one"], rel=WITHIN)


def test_jobs_that_wait_for_something_else_are_left_out_and_named(reshape: Run, served: World) -> None:
    served.submit("after", [2], depends_on=["one"])
    served.tick()
    shown = reshape("what-if")
    assert "Left out, on CPU or waiting for something else than GPUs: after" in shown.out


def test_without_a_change_it_tells_what_happens_as_things_stand(reshape: Run, served: World) -> None:
    shown = reshape("what-if")
    assert shown.code == 0 and "THEN" not in shown.out and "one  runs" in shown.out


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--drain", "x"], 1, "There is no node 'x'; there are: n1."),
        (["--deadline", "one"], 2, "'one' names no job and time; write JOB=30m, or 90s or 2h."),
        (["--gpus", "-1", "V100"], 1, "Only 0 V100 are idle"),
        (["--weight", "vision=2"], 1, "There is no queue or user 'vision'; there are: default."),
        (["--weight", "vision"], 2, "'vision' must be the name of a queue or user and a number, such as vision=2."),
    ],
)
def test_a_change_that_cannot_be_made_is_one_sentence(
    reshape: Run, served: World, arguments: list[str], code: int, why: str
) -> None:
    refused = reshape("what-if", *arguments)
    assert (refused.code, refused.out) == (code, "")
    assert why in refused.err
