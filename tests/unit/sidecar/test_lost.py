"""What was done again, by what was printed before and after."""

from __future__ import annotations

import pytest

from sidecar.output.progress import ProgressReader
from sidecar.protocol import Lost

KERAS = "Epoch {0}/30\n{1}/60 ━━━━━━━━━━ 0s 12ms/step - loss: 0.3"
MNIST = "Train Epoch: {0} [{1}/4000 ({2}%)]\tLoss: 0.3"


def lost(*generations: list[str]) -> Lost | None:
    """What the last of these generations lost. Line n of all arrives at second n."""
    reader, at = ProgressReader(), 0.0
    for number, lines in enumerate(generations, 1):
        reader.new_generation(at + 0.5)
        reader.new_output(number)
        for line in lines:
            at += 1.0
            reader.feed(line.encode() + b"\n", at)
    return reader.lost


def steps(first: int, last: int, by: int = 1) -> list[str]:
    return [f"step={n} total=1000 loss=0.5" for n in range(first, last + 1, by)]


def test_a_training_that_goes_on_where_it_was_has_lost_nothing() -> None:
    assert lost(steps(1, 50), steps(51, 60)) == Lost(generation=2)


def test_the_first_generation_cannot_have_lost_anything() -> None:
    assert lost(steps(1, 50)) is None
    assert lost([], steps(1, 50)) is None
    assert lost(steps(1, 50), []) is None


@pytest.mark.parametrize("checkpoint", [0, 1, 30, 49])
def test_what_was_done_since_the_checkpoint_is_lost(checkpoint: int) -> None:
    assert lost(steps(1, 50), steps(checkpoint + 1, 60)) == Lost(iterations=50 - checkpoint, generation=2)


def test_it_is_counted_against_the_generation_before_only() -> None:
    assert lost(steps(1, 50), steps(1, 20), steps(11, 12)) == Lost(iterations=10, generation=3)
    assert lost(steps(1, 50), steps(1, 20), steps(21, 22)) == Lost(generation=3)


def test_a_generation_that_printed_nothing_is_passed_over() -> None:
    assert lost(steps(1, 50), [], steps(41, 42)) == Lost(iterations=10, generation=3)


def test_where_every_tenth_step_is_printed_what_lies_between_is_counted() -> None:
    assert lost(steps(10, 200, 10), steps(160, 170, 10)) == Lost(iterations=50, generation=2)
    assert lost(steps(10, 200, 10), steps(210, 220, 10)) == Lost(generation=2)


def test_keras_that_was_stopped_at_the_end_of_an_epoch_shows_its_bar_again_and_has_lost_nothing() -> None:
    before = [KERAS.format(3, 30), KERAS.format(3, 60)]
    after = [KERAS.format(3, 60), KERAS.format(4, 1)]
    assert lost(before, after) == Lost(generation=2)
    assert lost(before, [KERAS.format(3, 59), KERAS.format(3, 60)]) != Lost(generation=2)


def test_keras_that_begins_again_has_lost_its_epochs_and_its_iterations() -> None:
    before = [KERAS.format(epoch, 60) for epoch in range(1, 18)]
    found = lost(before, [KERAS.format(1, 1)])
    assert found is not None and found.iterations == 17 * 60 and 16.9 < found.epochs < 17.1
    assert lost([KERAS.format(17, 30)], [KERAS.format(17, 31)]) == Lost(generation=2)


def test_epochs_are_counted_where_no_iterations_are() -> None:
    before = [f"Epoch [{epoch}/30], Loss: 0.4" for epoch in range(1, 13)]
    assert lost(before, ["Epoch [1/30], Loss: 0.9"]) == Lost(epochs=12.0, generation=2)
    assert lost(before, ["Epoch [12/30], Loss: 0.4"]) == Lost(epochs=1.0, generation=2)
    assert lost(before, ["Epoch [13/30], Loss: 0.4"]) == Lost(generation=2)


def test_parts_of_an_epoch_are_counted() -> None:
    before = [MNIST.format(5, 400 * n, 10 * n) for n in range(10)]
    found = lost(before, [MNIST.format(5, 0, 0)])
    assert found is not None and found.epochs == pytest.approx(1.0)
    assert lost(before, [MNIST.format(6, 0, 0)]) == Lost(generation=2)


def test_an_epoch_that_is_named_again_because_it_goes_on_is_not_lost() -> None:
    assert lost(["Epoch 16/30", "Epoch 17/30"], ["Epoch 17/30"]) == Lost(generation=2)
    assert lost(["epoch=4 loss=0.2", "epoch=5 loss=0.2", "epoch=5 loss=0.1"], ["epoch=5 loss=0.1"]) == Lost(
        generation=2
    )


def test_an_evaluation_that_is_done_again_is_no_work_that_is_lost() -> None:
    evaluation = "{'eval_loss': '0.2869', 'eval_runtime': '0.4032', 'epoch': '5'}"
    assert lost([*steps(1, 50), evaluation], [evaluation, *steps(51, 52)]) == Lost(generation=2)


def test_a_word_about_where_it_resumes_is_not_taken_for_a_step_that_is_done_again() -> None:
    assert lost(steps(1, 50), ["resumes behind step=50", *steps(51, 52)]) == Lost(generation=2)
    assert lost(steps(1, 50), ["starts from step=0", *steps(51, 52)]) == Lost(generation=2)


def test_a_count_that_begins_anew_in_each_epoch_tells_nothing() -> None:
    per_epoch = [f"epoch={epoch} step={step}" for epoch in (1, 2) for step in (1, 2, 3)]
    assert lost(per_epoch, ["epoch=2 step=1"]) is None


def test_where_it_is_not_known_which_generation_printed_what_nothing_is_said() -> None:
    reader = ProgressReader()
    reader.new_generation(0.5)
    reader.new_output(None)
    reader.feed("\n".join([*steps(1, 50), *steps(1, 9), ""]).encode(), 1.0, late=True)
    assert reader.lost is None
    reader.new_output(3)
    reader.feed(b"step=5 total=1000 loss=0.5\n", 2.0)
    assert reader.lost is None


def by_hook(first: int, last: int) -> list[str]:
    return [f"step={n} total=1000 time={n / 1e6:.6f}" for n in range(first, last + 1)]


FAKES = [
    "step=7",
    "step=7 total=9 loss=0.5",
    "epoch=3 loss=0.2",
    "Epoch [3/30], Loss: 0.4",
    "Train Epoch: 5 [0/4000 (0%)]\tLoss: 0.3",
]


@pytest.mark.parametrize("fake", FAKES)
def test_what_a_script_prints_beside_the_reports_of_its_hook_is_no_lost_work(fake: str) -> None:
    assert lost([fake, *by_hook(1, 50), fake], [fake, *by_hook(51, 60), fake]) == Lost(generation=2)
    assert lost([fake, *by_hook(1, 50), fake], [fake, *by_hook(41, 60)]) == Lost(iterations=10, generation=2)


def test_the_next_training_of_a_sweep_that_was_stopped_between_two_is_not_the_first_one_done_again() -> None:
    assert not (lost(by_hook(991, 1000), by_hook(1, 20)) or Lost()).iterations
    assert lost(by_hook(991, 999), by_hook(990, 995)) == Lost(iterations=10, generation=2)
    assert lost(by_hook(991, 1000), by_hook(1, 20), by_hook(11, 12)) == Lost(iterations=10, generation=3)


def test_a_loss_that_printed_lines_told_is_none_once_a_hook_reports() -> None:
    assert lost(["step=7"], ["step=7", *by_hook(8, 9)]) is None


@pytest.mark.parametrize("fake", FAKES)
def test_what_a_callback_prints_beside_the_bars_of_keras_is_no_lost_work(fake: str) -> None:
    before = [fake, KERAS.format(3, 20), fake, KERAS.format(3, 30)]
    assert lost(before, [fake, KERAS.format(3, 31), fake]) == Lost(generation=2)
