"""`reshape replay`: under the policy that ran the past comes out again, and other policies stand beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adaptive_scheduler.profiles.profiles import Profiles
from coordinator.errors import Rejected
from coordinator.forecasts.live_state import TABLES
from coordinator.model import states as s
from reshape.output.replay_table import as_object, as_table
from reshape.what_if.replay import Replay, replay
from tests.fakes.coordinator_api import Live
from tests.fakes.shims import Behaviour
from tests.fakes.terminal import Output
from tests.fakes.world import World

CLOSE = 0.05
Run = Callable[..., Output]


class Source:
    """What a client reads of a world."""

    def __init__(self, world: World) -> None:
        self._api = world.api

    def profiles(self, table: str) -> list[dict[str, Any]]:
        return self._api.profiles.profiles(table)

    def snapshot(self) -> dict[str, Any]:
        return self._api.simulations.snapshot()

    def journal(self, within_s: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(self._api.simulations.journal(within_s)))
        return found


def three_jobs(**more: Any) -> World:
    """A job that shrinks for another one and grows back, and one that waits meanwhile."""
    world = World()
    world.submit("one", [2, 4], Behaviour(iterations=400), **more)
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.pass_time(20.0)
    world.submit("two", [2], Behaviour(iterations=100))
    world.submit("three", [4], Behaviour(iterations=200))
    return world


def played(world: World, *policies: str) -> Replay:
    return replay(Source(world), policies)


def ends(found: Any) -> dict[str, float]:
    return {job.job_id: job.end_s for job in found.jobs}


def test_under_the_policy_that_ran_the_past_comes_out_again() -> None:
    world = three_jobs()
    world.run(World.at_rest, limit_s=2_000)
    found = played(world)
    first = min(world.job(name).submit_ts for name in world.states())
    assert ends(found.came) == {name: world.job(name).finish_ts - first for name in world.states()}
    assert ends(found.ran) == {name: pytest.approx(end_s, rel=CLOSE) for name, end_s in ends(found.came).items()}
    assert found.ran.makespan_s == pytest.approx(found.came.makespan_s, rel=CLOSE)
    assert found.ran.mean_completion_s == pytest.approx(found.came.mean_completion_s, rel=CLOSE)
    assert found.ran.gpu_s == pytest.approx(found.came.gpu_s, rel=CLOSE)


def test_the_regret_is_the_fleets_time_that_another_policy_would_have_saved() -> None:
    world = three_jobs()
    world.run(World.at_rest, limit_s=2_000)
    found = played(world, "default")
    ran, other = found.ran.makespan_s, found.others["default"].makespan_s
    assert ran and other and ran != pytest.approx(other, rel=0.01), "it makes a difference"
    assert found.regret_s("default") == pytest.approx(4 * (ran - other))
    sentence = "Regret: default would have saved" if ran > other else "No regret: default would have cost"
    assert sentence in as_table(found)


def test_without_a_name_all_policies_but_the_one_that_ran_are_replayed() -> None:
    world = three_jobs()
    world.run(World.at_rest, limit_s=2_000)
    assert set(played(world).others) == {"sidecar", "termination", "default"}
    with pytest.raises(Rejected, match="There is no policy 'best'; there are: planner, sidecar, termination, default"):
        played(world, "best")


def test_what_has_not_ended_does_what_is_expected_of_it() -> None:
    world = three_jobs()
    world.pass_time(60.0)
    began = world.clock.wall()
    found = played(world)
    assert found.came.makespan_s is None, "not yet known"
    first = min(world.job(name).submit_ts for name in world.states())
    world.run(World.at_rest, limit_s=2_000)
    last = max(world.job(name).finish_ts for name in world.states())
    assert last > began
    assert found.ran.makespan_s == pytest.approx(last - first, rel=CLOSE)


def test_a_cancelled_job_does_what_it_did_and_one_that_never_started_is_left_out() -> None:
    world = three_jobs()
    world.run(lambda w: w.states()["two"] == s.RUNNING)
    assert world.states()["three"] == s.SUBMITTED
    world.api.operator.cancel("three")
    world.pass_time(20.0)
    world.api.operator.cancel("one")
    world.run(World.at_rest, limit_s=2_000)
    found = played(world)
    assert found.left_out == ("three",)
    assert 0 < world.job("one").iterations_done < 400
    assert ends(found.ran)["one"] == pytest.approx(ends(found.came)["one"], rel=0.1)
    assert "Left out, on CPU or ended before they started: three." in as_table(found)


def test_a_job_whose_steps_are_not_known_trains_as_long_as_it_did() -> None:
    world = World()
    world.submit("mute", [2], Behaviour(iterations=100), job_type="unheard-of", iterations=None)
    world.run(World.at_rest, limit_s=2_000)
    world.store.update("jobs", "mute", {}, {"iters_done": 0})
    for row in world.store.list("speed_profiles"):
        world.store.remove("speed_profiles", [row["_id"]])
    found = played(world)
    came = world.job("mute")
    assert came.iterations_done == 0
    launched = (found.ran.jobs[0].end_s or 0) - came.ran_s(came.finish_ts)
    assert 0 < launched < 200, "what it trained, and a start as assumed for a job of an unknown type"


def test_a_name_that_was_used_again_means_two_jobs() -> None:
    world = World()
    for _ in range(2):
        world.api.submissions.submit(
            {"job_id": "again", "num_gpus": 2, "command": ["x"], "job_type": "mnist", "iterations": 50}
        )
        world.run(World.at_rest, limit_s=400)
    assert set(ends(played(world).came)) == {"again", "again~2"}


def test_only_what_ended_lately_is_read_where_that_is_wanted() -> None:
    world = World()
    for name in ("old", "new"):
        world.submit(name, [2], Behaviour(iterations=50))
        world.run(World.at_rest, limit_s=400)
        world.pass_time(100.0)
    assert set(ends(replay(Source(world), (), 150).came)) == {"new"}


# the command


@pytest.fixture
def served(live: Live, monkeypatch: pytest.MonkeyPatch) -> World:
    world = three_jobs(sla="10s")
    world.run(World.at_rest, limit_s=2_000)
    monkeypatch.setattr(live.coordinator, "journal", world.api.simulations.journal)
    for table in TABLES:
        live.coordinator.tables[table] = world.api.profiles.profiles(table)
    return world


def test_the_command_sets_all_beside_one_another(reshape: Run, served: World) -> None:
    shown = reshape("replay", "--policy", "default", "--since", "6h")
    assert shown.code == 0, shown.err
    head, *rows = shown.out.splitlines()
    assert head.split() == ["CAME", "REPLAYED", "default"]
    assert [row.split("  ")[0] for row in rows[:5]] == [
        "Makespan", "Mean completion time", "Deadlines missed", "GPU-hours held by jobs",
        "GPU-hours of the fleet while there was work",
    ]  # fmt: skip
    assert "The replay of what ran has a makespan" in shown.out and "Assumed: " in shown.out
    answer = reshape("-o", "json", "replay").doc
    assert answer == json.loads(json.dumps(as_object(replay(Source(served)))))
    assert answer["runs"]["came"]["missed_deadlines"] == 1


def test_wrong_usage_and_an_empty_past_are_told(reshape: Run, live: Live) -> None:
    assert reshape("replay", "--since", "soon").code == 2
    nothing = reshape("replay")
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.startswith("There is nothing to replay")


def test_profiles_are_those_that_were_measured(served: World) -> None:
    assert Profiles.from_rows(served.api.profiles.profiles("speed_profiles")).speeds
