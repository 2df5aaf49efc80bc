"""What the trainer prints, and what is understood of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.output import progress
from sidecar.output.progress import LINE_LIMIT, ProgressReader

# Printed by Keras 3 into a pipe: two epochs of 8 batches, then evaluate() with 4.
KERAS_BARS = (
    "Epoch 1/2\n\r\x1b[1m1/8\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━━━━━\x1b[0m \x1b[1m1s\x1b[0m 232ms/step - accuracy:"
    " 0.5000 - loss: 0.7132"
    + "\x08"
    * 72
    + "\r\x1b[1m8/8\x1b[0m \x1b[32m━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m0s\x1b[0m"
    " 24ms/step - accuracy: 0.5469 - loss: 0.7152 - val_accuracy: 0.5469 - val_loss: 0.7140\n"
    "Epoch 2/2\n\r\x1b[1m3/8\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━━━━━\x1b[0m \x1b[1m0s\x1b[0m 96ms/step - accuracy:"
    " 0.7500 - loss: 0.6574"
)
KERAS_REST = (
    "\x08" * 71 + "\r\x1b[1m8/8\x1b[0m \x1b[32m━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m0s\x1b[0m 13ms/step - accuracy:"
    " 0.5469 - loss: 0.7143 - val_accuracy: 0.5312 - val_loss: 0.7134\n"
    "\r\x1b[1m1/4\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━\x1b[0m"
    " \x1b[1m0s\x1b[0m 76ms/step - accuracy: 0.6875 - loss: 0.7256\n"
)
KERAS_LINES = (
    "Epoch 1/2\n8/8 - 0s - 38ms/step - accuracy: 0.4062 - loss: 0.7918\nEpoch 2/2\n8/8 - 0s - 7ms/step - loss: 0.7\n"
)


def read(
    *lines: str, pattern: str | None = None, spawn_at: float = 0.5, measure: str = "", never: str = ""
) -> ProgressReader:
    """Line n arrives at second n."""
    reader = ProgressReader(pattern, measure, never)
    reader.new_generation(spawn_at)
    for at, line in enumerate(lines, 1):
        reader.feed(line.encode() + b"\n", float(at))
    return reader


@pytest.mark.parametrize("name", ["step", "iteration", "iter", "global_step"])
def test_key_value_lines_are_read_under_every_usual_name(name: str) -> None:
    p = read(f"[train] {name}=7 total=100, epoch=1.5 loss=0.25").progress
    assert (p.iterations, p.total_iterations, p.epochs, p.value, p.value_name) == (7, 100, 1.5, 0.25, "loss")


@pytest.mark.parametrize("name", ["total", "total_steps", "total_iterations"])
def test_json_lines_are_read_under_the_same_names(name: str) -> None:
    p = read(f'{{"step": 7, "{name}": 100, "acc": 0.5, "note": ["x"], "on": true}}').progress
    assert (p.iterations, p.total_iterations, p.value, p.value_name) == (7, 100, 0.5, "acc")


def test_words_that_only_resemble_a_key_are_no_report() -> None:
    p = read("max_iter=500 my.step=9 step=12abc step=1.2.3 steps=4").progress
    assert p.iterations == 0


def test_an_evaluation_value_is_not_replaced_by_a_lesser_measure() -> None:
    reader = read(
        "step=1 loss=0.9", "epoch=1 val_loss=0.8", "step=2 loss=0.7 val_f1=0.1", "val_accuracy=0.6 val_loss=0.5"
    )
    assert (reader.progress.value_name, reader.progress.value) == ("val_accuracy", 0.6)


def test_the_loss_counts_before_training_accuracy_which_stands_still_at_its_end() -> None:
    p = read("step=1 accuracy=1.0 loss=0.5", "step=2 accuracy=1.0 loss=0.4").progress
    assert (p.value_name, p.value, p.evaluations) == ("loss", 0.4, 2)


def test_the_value_that_the_record_names_counts_before_all_others() -> None:
    lines = ("step=1 f1=0.2 val_accuracy=0.6", "step=2 loss=0.3 value=7", "step=3 f1=0.3")
    p = read(*lines, measure="f1").progress
    assert (p.value_name, p.value, p.evaluations) == ("f1", 0.3, 2)


def test_a_value_that_the_target_cannot_mean_counts_only_where_there_is_no_other() -> None:
    lines = ("step=1 loss=0.9 accuracy=0.2", "val_loss=0.5")
    assert read(*lines, never="loss").progress.value_name == "accuracy"
    assert read("loss=0.9", never="loss").progress.value_name == "loss"
    assert read("val_accuracy=0.9 val_loss=0.5", never="acc").progress.value_name == "val_loss"


def test_keras_bars_are_read_before_they_are_finished() -> None:
    reader = read()
    reader.feed(KERAS_BARS.encode(), 3.0)
    p = reader.progress
    assert (p.iterations, p.total_iterations, p.epochs) == (11, 16, 1.375)
    assert (p.value_name, p.value, p.last_step_at) == ("val_accuracy", 0.5469, 3.0)


def test_evaluation_after_training_moves_no_step() -> None:
    reader = read()
    reader.feed((KERAS_BARS + KERAS_REST).encode(), 3.0)
    p = reader.progress
    assert (p.iterations, p.total_iterations, p.epochs, p.value) == (16, 16, 2.0, 0.5312)


def test_keras_one_line_per_epoch_is_read() -> None:
    p = read(*KERAS_LINES.splitlines()).progress
    assert (p.iterations, p.total_iterations, p.epochs, p.value_name) == (16, 16, 2.0, "loss")


def test_a_resumed_keras_epoch_counts_on() -> None:
    reader = read(*KERAS_LINES.splitlines())
    reader.new_generation(10.0)
    reader.feed("Epoch 2/2\n\r\x1b[1m2/8\x1b[0m \x1b[32m━━\x1b[0m".encode(), 11.0)
    assert reader.progress.iterations == 16 and reader.progress.first_step_at == 11.0


def test_a_users_pattern_reads_its_groups_and_nothing_else() -> None:
    pattern = r"it (?P<iteration>\d+) of (?P<total>\d+), err (?P<value>\S+)"
    p = read("step=99 it 5 of 50, err 0.125", "step=100", pattern=pattern).progress
    assert (p.iterations, p.total_iterations, p.value, p.value_name) == (5, 50, 0.125, "value")


def test_a_users_pattern_may_leave_groups_out() -> None:
    p = read("e3", "x", pattern=r"e(?P<epoch>\d+)(?P<value>v\d)?").progress
    assert (p.epochs, p.iterations, p.value) == (3.0, 0, None)


def test_steps_never_go_back_but_a_repeated_step_is_the_generations_first() -> None:
    reader = read("step=10", "step=11", "step=12")
    reader.new_generation(4.0)
    reader.feed(b"step=11\n", 5.0)
    p = reader.progress
    assert (p.iterations, p.first_step_at, p.last_step_at, p.previous_last_step_at) == (12, 5.0, 5.0, 3.0)


def test_a_generation_without_a_step_keeps_the_one_before_as_previous() -> None:
    reader = read("step=1", "step=2")
    reader.new_generation(4.0)
    reader.new_generation(5.0)
    assert reader.progress.previous_last_step_at == 2.0


def test_speed_leaves_out_the_first_step_and_starts_afresh_with_a_generation() -> None:
    reader = read()
    reader.feed(b"step=1 time=1\nstep=2 time=10\nstep=3 time=10.5\nstep=5 time=11.5\n", 12.0)
    assert reader.progress.seconds_per_iteration == pytest.approx(0.5)
    reader.new_generation(13.0)
    assert reader.progress.seconds_per_iteration is None


def test_speed_is_that_of_the_last_window() -> None:
    reader = read()
    for n in range(150):
        at = 1 + (n if n < 50 else 50 + 0.1 * (n - 50))
        reader.feed(f"step={n}\n".encode(), at)
    assert reader.progress.seconds_per_iteration == pytest.approx(0.1)


def test_a_pause_within_many_reports_is_not_taken_for_the_speed() -> None:
    """A training that reports each tenth of a millisecond, and saves or waits for a tenth of a second now and then."""
    reader = read()
    speeds = []
    at = 1.0
    for step in range(100_000):
        at += 0.1 if step % 1000 == 999 else 0.0001
        reader.feed(f"step={step} time={at:.6f}\n".encode(), at)
        if at > 10.0:
            speeds.append(reader.progress.seconds_per_iteration)
    assert min(speeds) > 0.00019 and max(speeds) < 0.00021
    assert len(reader._window) < 100


def test_a_lines_own_time_counts_instead_of_its_arrival() -> None:
    reader = read("step=1 time=0.75", "step=2 time=99999", "step=3 time=-4")
    assert (reader.progress.first_step_at, reader.progress.last_step_at) == (0.75, 3.0)


def test_a_late_line_of_the_generation_before_is_not_this_ones_first_step() -> None:
    reader = read()
    reader.new_generation(10.0)
    reader.feed(b"step=8 time=9.5\nstep=8 time=12\n", 13.0)
    p = reader.progress
    assert (p.previous_last_step_at, p.first_step_at) == (9.5, 12.0)


def test_output_read_again_after_a_restart_gives_counts_and_only_its_own_times() -> None:
    reader = ProgressReader()
    reader.new_generation(10.0)
    reader.feed(b"step=5\nstep=6 time=9\nstep=7 time=11\nstep=8\n", 50.0, late=True)
    p = reader.progress
    assert (p.iterations, p.previous_last_step_at, p.first_step_at, p.last_step_at) == (8, 9.0, 11.0, 11.0)


def test_times_before_any_trainer_of_ours_are_not_believed() -> None:
    reader = ProgressReader()
    reader.feed(b"step=5 time=9\n", 50.0, late=True)
    reader.new_generation(60.0)
    assert reader.progress.iterations == 5 and reader.progress.previous_last_step_at is None


def test_a_finished_checkpoint_is_noted_and_is_no_step() -> None:
    reader = read("checkpoint=g1-s40 step=40 time=0.9")
    assert reader.saved == {"g1-s40": 0.9} and reader.progress.iterations == 0


@pytest.mark.parametrize("bad", ["nan", "NaN", "inf", "1e300", "-3", "1e999", "9" * 400, "0.5", "true", "x", ""])
def test_a_step_that_cannot_be_is_dropped_and_the_rest_of_the_line_kept(bad: str) -> None:
    p = read("step=4", f"step={bad} loss=0.5", f'{{"step": "{bad}", "epoch": 2}}').progress
    assert (p.iterations, p.value, p.epochs) == (4, 0.5, 2.0)


@pytest.mark.parametrize("bad", ["nan", "inf", "1e300", "-inf"])
def test_a_value_that_cannot_be_is_dropped(bad: str) -> None:
    assert read(f"step=4 loss={bad}").progress.value is None


def test_lines_without_end_and_binary_are_bounded_and_what_follows_is_read() -> None:
    reader = read()
    for _ in range(100):
        reader.feed(b"\x00\xff\xfestep=5" * 1000, 1.0)
        assert len(reader._rest) <= LINE_LIMIT
    reader.feed(b"step=77\nstep=6\n", 2.0)
    assert reader.progress.iterations == 6


def test_a_character_cut_in_two_is_read_as_one() -> None:
    reader, whole = read(), ("Epoch 1/1\n5/8 " + "━" * 3).encode()
    for byte in whole:
        reader.feed(bytes([byte]), 1.0)
    assert reader.progress.iterations == 5


def test_what_was_left_without_a_newline_is_read_at_the_end() -> None:
    reader = read()
    reader.feed(b"step=3", 1.0)
    assert reader.progress.iterations == 0
    reader.flush(1.0)
    assert reader.progress.iterations == 3


PIECES = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["\n", "\r", "\x08", "Epoch 2/3\n", "3/8 ━━", "8/8 - 0s - loss: 1", "{", "}", "step=", "time=", "\x1b[1m"]
    ),
    st.floats().map(lambda f: f"step={f} loss={f} time={f}\n"),
    st.integers().map(lambda i: f'{{"iteration": {i}, "total": {i}, "epoch": {i}}}\n'),
)


@given(st.lists(PIECES, max_size=30), st.lists(st.integers(0, 29)), st.sampled_from([None, r"(?P<iteration>\d+)"]))
def test_any_text_is_read_without_an_error_and_nothing_goes_back(pieces: list, spawns: list, pattern: str) -> None:
    reader = ProgressReader(pattern)
    before = reader.progress
    for at, piece in enumerate(pieces):
        if at in spawns:
            reader.new_generation(float(at))
        reader.feed(piece.encode("utf-8", "surrogatepass"), float(at))
        now = reader.progress
        assert now.iterations >= before.iterations and now.epochs >= before.epochs
        assert now.seconds_per_iteration is None or now.seconds_per_iteration > 0
        before = now
    reader.flush(31.0)
    assert reader.progress.iterations >= before.iterations


@given(st.binary(max_size=300), st.integers(1, 7))
def test_any_bytes_cut_anywhere_are_read_like_the_whole(data: bytes, size: int) -> None:
    data = b"step=3 loss=1\n" + data + b"\nstep=4\n"
    whole, cut = ProgressReader(), ProgressReader()
    whole.feed(data, 1.0)
    for begin in range(0, len(data), size):
        cut.feed(data[begin : begin + size], 1.0)
    assert cut.progress.iterations == whole.progress.iterations
    assert cut.progress.value == whole.progress.value


def test_steps_that_are_read_at_once_tell_the_speed_between_two_looks() -> None:
    """As beside an undisturbed trainer, whose output is read every five seconds."""
    reader = ProgressReader()
    reader.new_generation(0.0)
    reader.feed(b"step=1\n", 1.0)
    for look in range(4):
        steps = range(2 + look * 25, 2 + (look + 1) * 25)
        reader.feed("".join(f"step={step}\n" for step in steps).encode(), 6.0 + 5 * look)
        if look:
            assert reader.progress.seconds_per_iteration == pytest.approx(0.2)


def test_the_longest_time_between_two_reports_of_a_training_is_kept_over_its_generations():
    reader = ProgressReader()
    reader.new_generation(0.0)
    for step, at in ((1, 1.0), (2, 2.0), (3, 62.0), (4, 63.0)):
        reader.line(f"step={step}", at)
    assert reader.progress.longest_gap_s == 60.0
    reader.new_generation(100.0)
    reader.line("step=5", 500.0)  # its first step has nothing to do with evaluations
    assert reader.progress.longest_gap_s == 60.0


@pytest.mark.parametrize(
    ("saved", "done"),
    [
        ("checkpoint=g2-s111 step=111 time=9 took=0.1", 111),
        ("checkpoint=g1-s90 step=90 time=9", 95),
        ("checkpoint=g2-s112 step=112 time=9", 95),  # it counts something else
        ("checkpoint=training-2:g2-s100 step=100 time=9", 95),
        ("checkpoint=g2-s111 time=9", 95),
        ("checkpoint=g2-s111 step=x time=9", 95),
    ],
)
def test_steps_that_a_checkpoint_holds_are_done_though_their_lines_were_lost(saved: str, done: int) -> None:
    """A shim that is killed loses what it has not read; the next process finds nothing left to do."""
    assert read("step=95 total=111 time=1", "job=a gpus=1 begins_at=111 time=8", saved).progress.iterations == done


def test_a_checkpoint_alone_is_no_count_of_iterations() -> None:
    assert read("checkpoint=g2-s111 step=111 time=9").progress.iterations == 0


def by_hook(step: int, at: float, total: int = 40, more: str = "") -> str:
    return f"step={step} total={total} {more}time={at:.6f}"


PRINTED_COUNTERS = (
    "step={0} loss=0.5",
    "step={0} total=5",
    '{{"step": {0}, "total": 5}}',
    "global_step={0}00",
    "step={0}00 time=0.123456",
    "step {0}/5",
    "iter {0}: loss 0.5",
    "Epoch {0}/5",
    "epoch {0} of 5",
    "Epoch [{0}/5], Loss: 0.42",
    "Epoch 3/5\n{0}/60 ━━━━━━━━━━ 0s 12ms/step - loss: 0.3",
    "Epoch 3:  40%|████      | {0}/60 [00:03<00:05, 7.10it/s, train_loss=0.520]",
    " 40%|████      | {0}/1000 [01:02<01:33,  6.40it/s]",
    "[{0}]\ttrain-logloss:0.12345",
    "total_steps={0}",
)


@pytest.mark.parametrize("counter", PRINTED_COUNTERS)
def test_beside_the_reports_of_a_hook_no_counter_that_a_script_prints_is_progress(counter: str) -> None:
    reader = read(spawn_at=1000.0)
    for step in range(1, 31):
        at = 1000.0 + step
        reader.feed(f"{counter.format(step % 5)}\n{by_hook(step, at)}\n{counter.format((step + 1) % 5)}\n".encode(), at)
    p = reader.progress
    assert (p.iterations, p.total_iterations) == (30, 40)
    assert (p.seconds_per_iteration, p.last_step_at) == (pytest.approx(1.0), 1030.0)


def test_what_a_script_printed_before_the_first_report_of_its_hook_counts_no_more() -> None:
    reader = read("step=5000 total=9000 loss=0.5", spawn_at=0.5)
    assert reader.progress.iterations == 5000
    reader.feed(f"{by_hook(1, 2.0)}\n".encode(), 2.0)
    assert (reader.progress.iterations, reader.progress.total_iterations) == (1, 40)
    assert (reader.progress.value, reader.progress.value_name) == (0.5, "loss"), "what it has measured stays"


@pytest.mark.parametrize(
    "before", ["", "\r 4/10", "saving step 4/10 ", "\r 40%|████      | 4/10 [00:01<00:02, 3.1it/s]", "loss=0.5"]
)
def test_a_report_of_a_hook_is_read_though_the_line_before_it_has_no_end(before: str) -> None:
    p = read(before + by_hook(7, 0.75)).progress
    assert (p.iterations, p.total_iterations) == (7, 40)


def test_epochs_are_counted_as_printed_unless_the_hook_tells_them() -> None:
    assert read(by_hook(1, 0.6), "Epoch 3/30").progress.epochs == 2.0
    assert read(by_hook(1, 0.6, more="epoch=1 "), "Epoch 3/30").progress.epochs == 1.0


def test_where_hooks_leave_the_rest_of_a_script_alone_what_it_prints_counts_again() -> None:
    reader = read(by_hook(40, 0.75), "reports=ended time=0.800000", "step=50 total=90", "step=51 total=90")
    assert (reader.progress.iterations, reader.progress.total_iterations) == (51, 90)


def test_keras_own_bars_count_before_counters_that_a_callback_prints() -> None:
    reader = read()
    for epoch in (1, 2):
        reader.feed(f"Epoch {epoch}/3\n".encode(), float(epoch))
        for batch in range(1, 9):
            text = f"step={batch} loss=0.5\n{batch}/8 ━━━━━━━━ 0s 24ms/step - loss: 0.7\n"
            reader.feed(text.encode(), epoch + batch / 10)
    assert (reader.progress.iterations, reader.progress.total_iterations, reader.progress.epochs) == (16, 24, 2.0)


def test_steps_of_validation_within_a_training_do_not_begin_its_speed_anew() -> None:
    reader = read()
    at = 1.0
    for step in range(20, 40):
        at += 1.0
        validation = "".join(f"step={n} val_loss=0.5\n" for n in range(3))
        reader.feed(f"step={step} loss=0.5\n{validation}".encode(), at)
    assert reader.progress.seconds_per_iteration == pytest.approx(1.0)


def test_a_second_process_that_prints_the_same_steps_a_little_later_does_not_begin_the_speed_anew() -> None:
    reader = read()
    at = 1.0
    for step in range(1, 40):
        at += 1.0
        reader.feed(f"step={step + 1} loss=0.5\nstep={step} loss=0.5\n".encode(), at)
    assert reader.progress.seconds_per_iteration == pytest.approx(1.0)


FLOOD = "".join(f"line {n} of step=7 that says loss=0.5 and time=0.25\n" for n in range(1000))


def test_the_last_report_of_a_hook_is_found_in_what_was_passed_over() -> None:
    reader = read(by_hook(1, 0.6))
    last = f"{FLOOD}{by_hook(38, 8.0)}\ncheckpoint=g1-s39 step=39 time=8.500000\n{FLOOD}"
    older = f"{by_hook(7, 2.0)}\n{FLOOD}"
    reader.find_newest_count(iter([FLOOD.encode(), last.encode(), older.encode()]), 9.0)
    assert (reader.progress.iterations, reader.progress.total_iterations) == (38, 40)


@pytest.mark.parametrize("first", ["nothing", "step=1 total=40", by_hook(1, 0.6)])
def test_all_that_is_kept_is_searched_for_a_report_of_a_hook_and_its_end_for_other_counts(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(progress, "MOST_SEARCHED", 100)
    reader = read(first)
    pieces = [b"nothing\n" * 13, b"step=38 total=40\n"]
    reader.find_newest_count(iter(pieces), 9.0)
    assert reader.progress.iterations == (first != "nothing"), "it is too far back"
    reader.find_newest_count(iter([*pieces, f"{by_hook(7, 2.0)}\n".encode()]), 9.0)
    assert reader.progress.iterations == 7


def test_the_last_printed_count_is_found_in_what_was_passed_over_where_no_hook_reports() -> None:
    reader = read("step=1 total=40 loss=0.5")
    reader.find_newest_count(iter([b"nothing\n", b"step=39 total=40 loss=0.1\nnothing\n", b"step=50 total=60\n"]), 9.0)
    assert (reader.progress.iterations, reader.progress.total_iterations) == (39, 40)
    reader.find_newest_count(iter([b"step=3 total=40 loss=0.1\n"]), 9.0)
    assert reader.progress.iterations == 39, "never fewer"


def test_a_worse_count_is_not_taken_for_what_was_passed_over() -> None:
    reader = read("step=5 total=40 loss=0.5")
    reader.find_newest_count(iter([b"step 99/100\n", b"step=39 total=40 loss=0.1\n"]), 9.0)
    assert reader.progress.iterations == 39
