"""Anything may happen to a small cluster, in any order; nobody may ever see two users of one GPU.

Promises P1, P2, P4, P6 and P12 of `reliability.md` 4. After each example everything is healed, and
every job must come to rest with its GPUs idle and none of its processes left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adaptive_scheduler.decision import Explanation, Finish, Move, Requeue
from coordinator.config import Config
from coordinator.errors import ReshapeError
from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from tests.depth import drawn
from tests.fakes.shims import Behaviour
from tests.fakes.world import GPU_TYPE, SHORT, Crash, World

COUNTS = st.sampled_from([[1], [2], [1, 2], [2, 4], [1, 2, 4], [3], [4], [0]])
OTHERS = tuple(FoundGpu(f"other-{i}", GPU_TYPE, None, True) for i in range(2))
JOBS = st.integers(0, 3)
WHEN = st.integers(-4, 12)  # below 0: now
REST_S = 1_500.0  # for at most five jobs of 40 steps one after the other, with all their retries


class Lifecycle(RuleBasedStateMachine):
    world: World
    config: Config = SHORT
    queues: tuple[str, ...] = ("default",)  # which the jobs are in, in turn
    pods: tuple[int, ...] = (0,)  # GPUs of each pod of the jobs, in turn; 0: it has one pod

    @initialize(newcomer_s=st.sampled_from([None, 0.0, 2.0, 4.0, 5.0]))
    def begin(self, newcomer_s: float | None) -> None:
        """Not an empty cluster: a job that can shrink has trained for a while, and perhaps must shrink now."""
        self.world = World(config=self.config, nodes=[FoundNode("n2", OTHERS, cores=2.0)])
        self.world.users.put("queues", {"_id": "recreate", "devices": "recreate"})
        self.count = 0
        self.submit([1, 2, 4], 200)
        self._pass(8.0)
        if newcomer_s is not None:
            self.submit([2], 20)
            self._pass(newcomer_s)

    def name(self, index: int) -> str:
        return f"job-{index % max(1, self.count)}"

    def behaviour(self, index: int) -> Behaviour:
        return self.world.machines.of(self.name(index))

    def later(self, after: int, what: Callable[[], object]) -> None:
        """At once, or in the middle of what the coordinator does next, as from another thread."""
        if after < 0:
            self._ask(what)
        else:
            self.world.meanwhile.append((len(self.world.passed) + after, lambda: self._ask(what)))

    # what users and operators do

    @precondition(lambda self: self.count < 5)
    @rule(counts=COUNTS, iterations=st.sampled_from([5, 20, 40]))
    def submit(self, counts: list[int], iterations: int) -> None:
        self.count += 1
        queue, each = self.queues[self.count % len(self.queues)], self.pods[self.count % len(self.pods)]
        gang = {"gpus_per_pod": each} if each and counts != [0] and not any(n % each for n in counts) else {}
        code = Behaviour(iterations=iterations, agrees=self.count % 2 == 0, warms_s=(None, 2.0, 1e9)[self.count % 3])
        owner = ("ada", "bob", None)[self.count % 3]
        self.world.submit(f"job-{self.count - 1}", counts, code, queue=queue, owner=owner, **gang)

    @rule(index=JOBS, after=WHEN)
    def cancel(self, index: int, after: int) -> None:
        self.later(after, lambda: self.world.api.operator.cancel(self.name(index)))

    @rule(index=JOBS)
    def cancel_by_editing_the_document(self, index: int) -> None:
        self._ask(lambda: self.world.users.update("jobs", self.name(index), {}, {"cancel": True}))

    @rule(index=JOBS, after=WHEN)
    def write_something_into_the_document(self, index: int, after: int) -> None:
        self.later(after, lambda: self.world.users.update("jobs", self.name(index), {}, {"x_note": "seen"}))

    @rule(index=JOBS, after=WHEN)
    def delete_the_document(self, index: int, after: int) -> None:
        self.later(after, lambda: self.world.users.delete("jobs", self.name(index)))

    @rule(index=JOBS, gpus=st.sampled_from([None, 1, 2, 4]))
    def wish(self, index: int, gpus: int | None) -> None:
        self._ask(lambda: self.world.api.operator.request(self.name(index), gpus, None))

    @rule(index=JOBS, suspended=st.booleans(), after=WHEN)
    def suspend_or_resume(self, index: int, suspended: bool, after: int) -> None:
        ask = self.world.api.operator.suspend if suspended else self.world.api.operator.resume
        self.later(after, lambda: ask(self.name(index)))

    @rule(node=st.sampled_from(["n1", "n2"]), drained=st.booleans(), after=WHEN)
    def drain_or_undrain(self, node: str, drained: bool, after: int) -> None:
        self.later(after, lambda: self.world.api.drains.drain(node, drained))

    # what the four systems decide

    @rule(index=JOBS, to=st.sampled_from(["n1", "n2"]), after=WHEN)
    def a_move_is_decided(self, index: int, to: str, after: int) -> None:
        self.later(after, lambda: self._order(index, to))

    @rule(index=JOBS, kind=st.sampled_from([Requeue, Finish]), after=WHEN)
    def a_job_is_to_give_way_or_to_end(self, index: int, kind: Any, after: int) -> None:
        self.later(after, lambda: self._order(index, kind))

    def _order(self, index: int, what: Any) -> None:
        """As the loop would: only of a job that runs and has no operation."""
        job = self.world.c.cache.job(self.name(index))
        if job is None or job.state != s.RUNNING or job.operation is not None or job.cancel:
            return
        why = Explanation("test", "so it was decided.")
        self.world.order(Move(job.id, what, len(job.gpu_ids), why) if isinstance(what, str) else what(job.id, why))

    def _ask(self, question: Callable[[], object]) -> None:
        """Users may ask for what is not there, or while the store is away."""
        try:
            question()
        except ReshapeError:
            pass

    # what happens to training

    @rule(index=JOBS, code=st.sampled_from([1, -9, -11, 137]), after=WHEN)
    def trainer_crashes(self, index: int, code: int, after: int) -> None:
        self.later(after, lambda: self.world.machines.end_trainer(self.name(index), code))

    @rule(index=JOBS)
    def trainer_crashes_at_its_next_start(self, index: int) -> None:
        self.behaviour(index).exits.append(1)

    @rule(index=JOBS, after=WHEN)
    def trainer_finishes_early(self, index: int, after: int) -> None:
        self.later(after, lambda: self.world.machines.end_trainer(self.name(index), 0))

    @rule(index=JOBS, ignores=st.booleans())
    def trainer_ignores_stop(self, index: int, ignores: bool) -> None:
        self.behaviour(index).ignores_stop = ignores

    @rule(index=JOBS, after=WHEN)
    def shim_dies(self, index: int, after: int) -> None:
        self.later(after, lambda: self.world.machines.kill_shim(self.name(index)))

    @rule(index=JOBS)
    def next_launch_fails(self, index: int) -> None:
        self.behaviour(index).launch_failures += 1

    @rule(index=JOBS, never=st.booleans())
    def launches_do_not_come_up(self, index: int, never: bool) -> None:
        self.behaviour(index).never_comes_up = never

    # what happens to messages

    @rule(index=JOBS, cut=st.booleans())
    def network(self, index: int, cut: bool) -> None:
        self.behaviour(index).partitioned = cut

    @rule(index=JOBS)
    def an_answer_is_lost(self, index: int) -> None:
        self.behaviour(index).answers_lost += 1

    @rule()
    def late_heartbeats_arrive(self) -> None:
        self.world.deliver_late()

    @rule(twice=st.booleans())
    def heartbeats_are_repeated(self, twice: bool) -> None:
        for _ in range(1 + twice):
            self.world.deliver_last()

    @rule(index=JOBS, ahead=st.integers(1, 3))
    def a_former_coordinator_sends_a_stop(self, index: int, ahead: int) -> None:
        launch = self.world.machines.present(self.name(index))
        if launch is not None and not self.behaviour(index).partitioned:
            self.world.machines.zombie_stop(launch.job, launch.status.generation + ahead)

    # what happens to the coordinator

    @rule()
    def coordinator_dies(self) -> None:
        self.world.store.down = False
        self.world.boot()

    @rule(after=st.integers(0, 12))
    def coordinator_dies_at_a_failpoint(self, after: int) -> None:
        self.world.crash_at = len(self.world.passed) + after

    @rule(after=st.integers(0, 12))
    def other_threads_reconcile_meanwhile(self, after: int) -> None:
        self.later(after, self.world.reconcile)

    @rule(after=st.integers(0, 12))
    def the_loop_decides_meanwhile(self, after: int) -> None:
        self.later(after, self.world.decide)

    @rule(hiccups=st.lists(st.sampled_from(["before", "after", ""]), min_size=1, max_size=4))
    def store_hiccups(self, hiccups: list[str]) -> None:
        self.world.store.hiccups.extend(hiccups)  # type: ignore[arg-type]

    @rule(seconds=st.sampled_from([5.0, 20.0, 40.0]))
    def store_is_away(self, seconds: float) -> None:
        self.world.store.down = True
        self._pass(seconds)
        self.world.store.down = False

    @rule(seconds=st.integers(1, 6))
    def time_passes(self, seconds: int) -> None:
        self._pass(float(seconds))

    @rule()
    def long_time_passes(self) -> None:
        self._pass(self.config.wait_out_s + 2)

    def _pass(self, seconds: float) -> None:
        end = self.world.clock.time + seconds
        while self.world.clock.time < end:
            try:
                self.world.tick()
            except Crash:
                self._reboot()
            self.nobody_sees_anything_wrong()

    def _reboot(self) -> None:
        """A coordinator that finds no store at its start waits for it; here that is the same as later."""
        down, self.world.store.down = self.world.store.down, False
        self.world.boot()
        self.world.store.down = down

    # what must hold

    @invariant()
    def time_goes_on(self) -> None:
        self._pass(1.0)

    def nobody_sees_anything_wrong(self) -> None:
        assert self.world.broken() == [], self.world.story()

    def teardown(self) -> None:
        world = self.world
        world.store.hiccups.clear()
        world.meanwhile.clear()
        for old in list(world.machines.behaviour.values()):
            old.exits, old.launch_failures, old.answers_lost = [], 0, 0
            old.never_comes_up = old.partitioned = old.ignores_stop = False
            old.cut = set()
        for node in ("n1", "n2"):
            world.users.update("nodes", node, {}, {"drained": False})
        for doc in world.users.list("jobs"):
            world.users.update("jobs", doc["_id"], {}, {"suspended": None})
        world.run(lambda w: w.at_rest() and self._all_idle(), REST_S, self.config.heartbeat_s)

    def _all_idle(self) -> bool:
        world = self.world
        idle = all(gpu["state"] == s.IDLE for gpu in world.users.list("gpus"))
        return idle and not world.machines.owners


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=drawn(12, 60), stateful_step_count=50, suppress_health_check=list(HealthCheck),
)  # fmt: skip


class RelaunchingLifecycle(Lifecycle):
    """The same where a reshape takes a new launch, and a newcomer waits for its GPUs before it is launched."""

    config = replace(SHORT, reshape_by="relaunch", early_initialization=False)


TestRelaunching = RelaunchingLifecycle.TestCase
TestRelaunching.settings = TestLifecycle.settings


class MixedLifecycle(Lifecycle):
    """The same where every other job is in a queue of device mode `recreate`."""

    queues = ("default", "recreate")


TestMixed = MixedLifecycle.TestCase
TestMixed.settings = TestLifecycle.settings


class GangLifecycle(Lifecycle):
    """The same where most jobs have several pods, of which one may crash, go or be out of reach alone."""

    pods = (1, 1, 2, 0)

    def pod(self, index: int, member: int) -> int | None:
        """If it has so many."""
        first = self.world.machines.present(self.name(index))
        return member if first and member < len(self.world.machines.pods(first)) else None

    @rule(index=JOBS, member=st.integers(1, 3), code=st.sampled_from([0, 1, -9]), after=WHEN)
    def trainer_in_one_pod_ends(self, index: int, member: int, code: int, after: int) -> None:
        if self.pod(index, member) is not None:
            self.later(after, lambda: self.world.machines.end_member(self.name(index), member, code))

    @rule(index=JOBS, member=st.integers(1, 3), after=WHEN)
    def one_pod_is_gone(self, index: int, member: int, after: int) -> None:
        if self.pod(index, member) is not None:
            self.later(after, lambda: self.world.machines.kill_pod(self.name(index), member))

    @rule(gpus=st.sampled_from([1, 2, 4]))
    def the_first_one_is_to_change(self, gpus: int) -> None:
        self._ask(lambda: self.world.api.operator.request("job-0", gpus, None))
        self._pass(4.0)

    @rule(index=JOBS, cut=st.sets(st.integers(0, 3)))
    def pods_out_of_reach(self, index: int, cut: set[int]) -> None:
        self.behaviour(index).cut = cut


TestGangs = GangLifecycle.TestCase
TestGangs.settings = TestLifecycle.settings
