"""The sidecar's judgement: when it tells what, and what it lets the shim do. Pure, milliseconds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import core
from sidecar.protocol import ENDLESS_LEASE_S, Checkpoint, HeartbeatReply, ShimStatus

RUNNING = ShimStatus(shim_pid=7, trainer="running", trainer_pid=8, generation=1, spawn_at=10.0, gpu_ids=["g"])
EXITED = msgspec.structs.replace(RUNNING, trainer="exited", trainer_pid=None, exit_code=143, exit_at=20.0)
NONE = ShimStatus(shim_pid=7)
FOUND = Checkpoint(name="g1-s5", step=5, generation=1)


def fresh() -> core.SidecarState:
    return core.SidecarState(heartbeat_s=5.0, seq=100)


def play(state: core.SidecarState, *events: core.Event) -> tuple[core.SidecarState, list[core.Instruction]]:
    done: list[core.Instruction] = []
    for event in events:
        state, instructions = core.step(state, event)
        done += instructions
    return state, done


def answer(
    state: core.SidecarState, at: float, lease_s: float = 300.0, known: bool = True, **limit: float
) -> core.HeartbeatAnswered:
    return core.HeartbeatAnswered(
        at, HeartbeatReply(seq=state.seq, lease_s=lease_s, grace_s=20.0, known=known, **limit)
    )


def beats(instructions: list[core.Instruction]) -> list[core.SendHeartbeat]:
    return [one for one in instructions if isinstance(one, core.SendHeartbeat)]


def running() -> core.SidecarState:
    """A trainer runs and its first heartbeat, sent at 11, was answered at 12."""
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING))
    return play(state, answer(state, 12.0))[0]


def test_nothing_is_sent_before_the_shim_has_spoken() -> None:
    assert play(fresh(), core.TimerFired(1.0), core.OutputRead(2.0, None), core.TimerFired(100.0))[1] == []


def test_the_first_heartbeat_goes_out_at_once() -> None:
    _, done = play(fresh(), core.ShimReported(11.0, RUNNING))
    assert done == [core.NewGeneration(10.0, 1, None), core.SendHeartbeat(101, RUNNING, None)]


def test_heartbeats_follow_one_another_at_the_interval() -> None:
    state = running()
    assert beats(play(state, core.TimerFired(15.9))[1]) == []
    assert len(beats(play(state, core.TimerFired(16.0))[1])) == 1


def test_a_lease_runs_from_when_the_heartbeat_was_sent() -> None:
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING))
    _, done = play(state, answer(state, 14.0, lease_s=60.0))
    assert done[0] == core.RenewLease(71.0)


def test_an_answer_to_another_heartbeat_renews_nothing() -> None:
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING))
    stale = core.HeartbeatAnswered(12.0, HeartbeatReply(seq=state.seq - 1, lease_s=300, grace_s=20))
    state, done = play(state, stale)
    assert done == [] and state.failures == 1


def test_an_answer_that_comes_after_the_heartbeat_was_given_up_renews_nothing() -> None:
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING), core.HeartbeatFailed(12.0, 0.0))
    assert play(state, answer(state, 12.1))[1] == []


def test_never_two_heartbeats_at_once_and_changes_meanwhile_become_one() -> None:
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING))
    stopping = msgspec.structs.replace(RUNNING, trainer="stopping", generation=2, stop_asked=True)
    state, done = play(state, core.OutputRead(11.5, 11.4), core.ShimReported(11.6, stopping), core.TimerFired(30.0))
    assert done == []
    _, done = play(state, answer(state, 31.0))
    assert [b.shim for b in beats(done)] == [stopping]


def test_a_change_is_told_at_once_a_renewed_lease_is_none() -> None:
    state = running()
    assert play(state, core.ShimReported(13.0, msgspec.structs.replace(RUNNING, lease_deadline=311.0)))[1] == []
    stopping = msgspec.structs.replace(RUNNING, trainer="stopping")
    assert len(beats(play(state, core.ShimReported(13.0, stopping))[1])) == 1


def test_it_is_told_at_once_that_an_interpreter_begins_to_wait_or_waits_but_not_why_none_does() -> None:
    state = running()
    for warm, told in (("no memory", 0), ("begins to wait", 1), ("ready (80 MiB)", 1), ("ready (81 MiB)", 0)):
        state, done = play(state, core.ShimReported(13.0, msgspec.structs.replace(RUNNING, warm=warm, warm_s=1.5)))
        assert len(beats(done)) == told, warm
        state, _ = play(state, *([answer(state, 13.0)] if told else []))


def test_the_first_step_of_a_generation_is_told_at_once_later_steps_are_not() -> None:
    state, done = play(running(), core.OutputRead(13.0, 12.9))
    assert len(beats(done)) == 1
    state, _ = play(state, answer(state, 13.1))
    assert play(state, core.OutputRead(13.5, 12.9))[1] == []


def test_a_failed_heartbeat_is_tried_again_ever_more_slowly_up_to_the_interval() -> None:
    state, pauses, at = play(fresh(), core.ShimReported(11.0, RUNNING))[0], [], 11.0
    for _ in range(8):
        state, _ = play(state, core.HeartbeatFailed(at, 1.0))
        pauses.append(round(state.due_at - at, 3))
        at = state.due_at
        state, done = play(state, core.TimerFired(at))
        assert len(beats(done)) == 1
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_jitter_shortens_a_pause_to_no_less_than_half() -> None:
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING), core.HeartbeatFailed(20.0, 0.0))
    assert state.due_at == pytest.approx(20.1)


def test_an_unknown_launch_is_ended_and_not_renewed() -> None:
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING))
    assert play(state, answer(state, 12.0, known=False))[1] == [core.EndShim(completed=False)]


def test_an_end_that_is_the_jobs_own_is_passed_on() -> None:
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING))
    reply = HeartbeatReply(seq=state.seq, lease_s=1.0, grace_s=1.0, known=False, completed=True)
    assert play(state, core.HeartbeatAnswered(12.0, reply))[1] == [core.EndShim(completed=True)]


def test_a_shim_that_ends_is_left_alone_only_once_its_end_was_told() -> None:
    ending = msgspec.structs.replace(EXITED, ending=True)
    state, _ = play(running(), core.ShimReported(20.0, ending))
    assert not core.leaving(state), "the checkpoints are still being verified"
    state, done = play(state, core.EndInspected(21.0, (7, 10.0, 20.0), FOUND))
    assert len(beats(done)) == 1 and not core.leaving(state)
    state, _ = play(state, answer(state, 22.0, known=False))
    assert core.leaving(state)


def test_a_shim_that_does_not_end_is_never_left_alone() -> None:
    state, _ = play(running(), core.ShimReported(20.0, EXITED), core.EndInspected(21.0, (7, 10.0, 20.0), None))
    state, _ = play(state, answer(state, 22.0))
    assert core.settled(state) and not core.leaving(state)


def test_counters_that_grow_are_no_news() -> None:
    counted = msgspec.structs.replace(RUNNING, cpu_s=12.0, memory=1 << 20)
    state, done = play(running(), core.ShimReported(13.0, counted))
    assert done == [] and state.shim == counted


def test_while_the_shim_is_out_of_reach_nothing_old_is_told() -> None:
    state, done = play(running(), core.ShimDisconnected(13.0), core.TimerFired(20.0), core.TimerFired(40.0))
    assert done == []
    assert len(beats(play(state, core.ShimReported(41.0, RUNNING))[1])) == 1


def test_that_a_trainer_ended_is_told_only_together_with_its_checkpoint() -> None:
    state, done = play(running(), core.ShimReported(20.0, EXITED))
    assert done == [core.InspectEnd((7, 10.0, 20.0))]
    state, done = play(state, core.TimerFired(26.0))
    assert [b.shim.trainer for b in beats(done)] == ["running"]
    state, _ = play(state, answer(state, 26.1))
    _, done = play(state, core.EndInspected(27.0, (7, 10.0, 20.0), FOUND))
    assert [(b.shim, b.checkpoint) for b in beats(done)] == [(EXITED, FOUND)]


def test_an_end_is_inspected_once_however_often_the_shim_says_it() -> None:
    _, done = play(
        running(),
        core.ShimReported(20.0, EXITED),
        core.ShimReported(20.1, EXITED),
        core.EndInspected(20.2, (7, 10.0, 20.0), FOUND),
        core.ShimReported(20.3, EXITED),
    )
    assert [type(one) for one in done] == [core.InspectEnd, core.SendHeartbeat]


def test_a_new_launch_tells_of_the_checkpoint_that_an_earlier_one_left() -> None:
    state, done = play(fresh(), core.ShimReported(1.0, NONE))
    assert done == [core.InspectEnd((7, None, None))]
    _, done = play(state, core.EndInspected(1.1, (7, None, None), FOUND))
    assert [b.checkpoint for b in beats(done)] == [FOUND]


def test_a_trainer_started_while_an_end_was_inspected_counts() -> None:
    again = msgspec.structs.replace(RUNNING, generation=2, spawn_at=21.0)
    state, done = play(running(), core.ShimReported(20.0, EXITED), core.ShimReported(21.0, again))
    assert [b.shim for b in beats(done)] == [again] and core.NewGeneration(21.0, 2, None) in done
    state, _ = play(state, core.EndInspected(22.0, (7, 10.0, 20.0), FOUND))
    assert state.shim == again and state.checkpoint == FOUND


def test_a_hook_that_announces_itself_is_told_at_once_and_until_the_next_generation() -> None:
    state, done = play(running(), core.OutputRead(12.5, None, hook=True), core.OutputRead(12.6, None, hook=True))
    assert len(beats(done)) == 1 and state.hook
    again = msgspec.structs.replace(RUNNING, generation=2, spawn_at=30.0)
    assert not play(state, core.ShimReported(31.0, again))[0].hook


def test_a_hook_that_withdraws_its_word_is_told_at_once_until_it_gives_it_again() -> None:
    state, _ = play(running(), core.OutputRead(12.5, None, hook=True))
    state, _ = play(state, answer(state, 12.6))
    state, done = play(state, core.OutputRead(13.0, None, withdrawn="the disk is full"))
    assert len(beats(done)) == 1 and (state.hook, state.withdrawn) == (False, "the disk is full")
    state, _ = play(state, answer(state, 13.1))
    again, done = play(state, core.OutputRead(14.0, None, hook=True))
    assert len(beats(done)) == 1 and (again.hook, again.withdrawn) == (True, "")
    next_one = msgspec.structs.replace(RUNNING, generation=2, spawn_at=30.0)
    assert play(state, core.ShimReported(31.0, next_one))[0].withdrawn == ""


def test_an_announcement_that_is_gone_counts_as_withdrawn() -> None:
    state, _ = play(running(), core.OutputRead(12.5, None, hook=True), core.OutputRead(13.0, None))
    assert not state.hook and "has withdrawn" in state.withdrawn
    state, _ = play(state, core.OutputRead(14.0, None))
    assert "has withdrawn" in state.withdrawn, "until it announces itself again"


def test_the_first_checkpoint_of_a_running_trainer_is_told_at_once_and_newer_ones_with_what_follows() -> None:
    state, done = play(running(), core.CheckpointVerified(12.5, FOUND))
    assert [one.checkpoint for one in beats(done)] == [FOUND]
    state, _ = play(state, answer(state, 12.6))
    newer = Checkpoint(name="g1-s9", step=9, generation=1)
    state, done = play(state, core.CheckpointVerified(13.0, newer), core.CheckpointVerified(13.1, FOUND))
    assert beats(done) == [] and state.checkpoint == newer


def test_what_was_verified_at_the_end_is_not_replaced_by_a_look_that_came_late() -> None:
    newer = Checkpoint(name="g1-s9", step=9, generation=1)
    state, _ = play(running(), core.ShimReported(20.0, EXITED), core.CheckpointVerified(20.1, newer))
    assert state.checkpoint is None
    state, _ = play(state, core.EndInspected(21.0, (7, 10.0, 20.0), None), core.CheckpointVerified(21.1, newer))
    assert state.checkpoint is None


def test_what_was_in_memory_at_the_end_counts_once_the_disk_has_it() -> None:
    copy = Checkpoint("g3-s8", 8, 3)
    ended = msgspec.structs.replace(EXITED, in_memory=copy)
    state, _ = play(running(), core.ShimReported(20.0, ended), core.EndInspected(21.0, (7, 10.0, 20.0), FOUND))
    assert core.has_unwritten_copy(state)
    state, _ = play(state, core.CheckpointVerified(22.0, copy))
    assert state.checkpoint == copy and not core.has_unwritten_copy(state)


def test_an_answer_to_a_call_says_stopping_until_a_heartbeat_has_told_the_end() -> None:
    state, _ = play(running(), core.ShimReported(20.0, EXITED), core.EndInspected(20.1, (7, 10.0, 20.0), FOUND))
    assert core.reportable(state, EXITED).trainer == "stopping"
    state, _ = play(state, answer(state, 20.2))
    assert core.reportable(state, EXITED) == EXITED
    assert core.reportable(state, msgspec.structs.replace(EXITED, generation=2)).trainer == "exited"
    assert core.reportable(state, msgspec.structs.replace(EXITED, exit_at=30.0)).trainer == "stopping"


def test_a_start_runs_on_the_lease_of_the_last_answered_heartbeat_not_on_its_receipt() -> None:
    state = running()  # sent at 11
    assert core.start_deadline(state, 60.0, at=500.0) == 71.0
    assert core.start_deadline(fresh(), 60.0, at=500.0) == 560.0
    unanswered, _ = play(
        fresh(), core.ShimReported(11.0, RUNNING), core.HeartbeatFailed(12.0, 0.5), core.TimerFired(13.0)
    )
    assert core.start_deadline(unanswered, 60.0, at=500.0) == 71.0


def test_a_start_with_a_lease_is_late_by_it_though_the_trainer_before_had_an_endless_one() -> None:
    endless = msgspec.structs.replace(RUNNING, lease_deadline=11.0 + 2 * ENDLESS_LEASE_S)
    state, _ = play(running(), core.ShimReported(12.0, endless))
    assert core.start_deadline(state, 60.0, at=500.0) == 71.0
    assert core.start_deadline(state, 3 * ENDLESS_LEASE_S, at=500.0) == 11.0 + 3 * ENDLESS_LEASE_S


def test_settled_means_that_the_coordinator_has_heard_it_all() -> None:
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING))
    assert not core.settled(state)
    state, _ = play(state, answer(state, 12.0))
    assert core.settled(state)
    renewed = msgspec.structs.replace(RUNNING, lease_deadline=311.0)
    assert core.settled(play(state, core.ShimReported(12.1, renewed))[0])
    assert not core.settled(play(state, core.ShimReported(20.0, EXITED))[0])


STATUSES = st.sampled_from([NONE, RUNNING, EXITED, msgspec.structs.replace(RUNNING, generation=2, spawn_at=30.0)])
KINDS = st.sampled_from(["said", "gone", "inspected", "read", "timer", "answered", "failed", "stranger"])


@given(st.lists(st.tuples(KINDS, STATUSES, st.floats(0, 3)), max_size=40))
def test_whatever_happens_one_heartbeat_at_a_time_rising_numbers_and_no_lease_unasked(events: list) -> None:
    state, at, under_way, last = fresh(), 0.0, None, 100
    for kind, status, pause in events:
        at += pause
        reply = HeartbeatReply(seq=state.seq - (kind == "stranger"), lease_s=10, grace_s=1)
        event: core.Event = {
            "said": core.ShimReported(at, status),
            "gone": core.ShimDisconnected(at),
            "inspected": core.EndInspected(at, core.trainer_end(status) or (7, None, None), FOUND),
            "read": core.OutputRead(at, at),
            "timer": core.TimerFired(at),
            "answered": core.HeartbeatAnswered(at, reply),
            "stranger": core.HeartbeatAnswered(at, reply),
            "failed": core.HeartbeatFailed(at, 0.5),
        }[kind]
        sent_at = under_way
        state, done = core.step(state, event)
        if isinstance(event, core.HeartbeatAnswered | core.HeartbeatFailed):
            under_way = None
        for one in done:
            if isinstance(one, core.RenewLease):
                assert kind == "answered" and sent_at is not None and one.deadline == sent_at + 10
            if isinstance(one, core.SendHeartbeat):
                assert under_way is None and one.seq == last + 1
                under_way, last = at, one.seq


def test_a_limit_is_counted_from_when_the_heartbeat_was_sent_and_no_limit_lifts_it() -> None:
    state, _ = play(fresh(), core.ShimReported(11.0, RUNNING))
    state, done = play(state, answer(state, 14.0, lease_s=60.0, limit=0.5, limit_s=20.0))
    assert done[1] == core.LimitCpu(0.5, 31.0)
    state, _ = play(state, core.TimerFired(16.0))
    _, done = play(state, answer(state, 17.0, lease_s=60.0))
    assert core.LimitCpu(None, 16.0) in done
