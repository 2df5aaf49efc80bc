"""What trainings usually print, and what of it is progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.output.formats import FIRST, TABLE, FormatMatcher, ProgressLine
from sidecar.output.progress import ProgressReader, rank
from sidecar.protocol import Progress

# name of the row -> what its example says: iterations, of how many, epochs, value, its name
SAID = {
    "PyTorch's MNIST example": (0, None, 4.4, 0.312, "loss"),
    "PyTorch's MNIST test": (0, None, 0.0, 0.991, "val_accuracy"),
    "PyTorch's ImageNet example": (240, None, 2.4, 3.1, "loss"),
    "an epoch and a step": (1300, 18000, 2.1667, 0.4213, "loss"),
    "an epoch and its values": (3, 30, 3.0, 0.42, "loss"),  # where nothing else is counted, epochs are
    "Epoch 3/30": (2, 30, 2.0, None, ""),
    "epoch 9 of 20": (8, 20, 8.0, None, ""),
    "word_language_model": (2 * 2983 + 200, None, 2.067, 5.63, "loss"),
    "word_language_model's end of an epoch": (0, None, 3.0, 5.43, "val_loss"),
    "timm": (2 * 1251 + 51, None, 2.0408, 6.95, "loss"),
    "mmcv and mmengine by epochs": (2 * 7330 + 50, None, 2.0068, 1.2345, "loss"),
    "mmcv and mmengine by iterations": (50, 160000, 0.0, 2.2144, "loss"),
    "detectron2": (20, None, 0.0, 2.345, "loss"),
    "minGPT": (100, None, 0.0, 1.23456, "loss"),
    "minGPT's trainer of old": (600, None, 1.2, 1.23456, "loss"),
    "XGBoost": (20, None, 0.0, None, ""),
    "LightGBM": (20, None, 0.0, None, ""),
    "LightGBM's program": (20, None, 0.0, None, ""),
    "scikit-learn's boosting by histograms": (20, 100, 0.0, None, ""),
    "scikit-learn's forest": (20, 100, 0.0, None, ""),
    "scikit-learn's boosting": (20, None, 0.0, 0.8423, "loss"),
    "scikit-learn's linear models": (20, None, 0.0, None, ""),
    "a step of so many": (9, 20, 0.0, None, ""),
    "a step": (9, None, 0.0, 3.2345, "loss"),
    "Keras' bar": (132, 1800, 2.2, None, None),  # which of its two values counts is for test_progress
    "Lightning's bar": (204, None, 3.4, 0.52, "train_loss"),
    "HF's length": (0, None, 0.0, None, ""),
    "HF's log": (0, None, 1.2, 0.52, "loss"),
    "HF's evaluation": (0, None, 2.0, None, None),
    "Hugging Face's bar": (400, 1000, 1.2, 0.52, "loss"),
}
HF_LOG = "{'loss': 0.52, 'grad_norm': 1.3, 'learning_rate': 4.9e-05, 'epoch': 1.2}"


def read(*pieces: str) -> Progress:
    """Piece n arrives at second n of a generation."""
    reader = ProgressReader()
    reader.new_generation(0.5)
    for at, piece in enumerate(pieces, 1):
        reader.feed(piece.encode(), float(at))
    return reader.progress


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_example_of_each_row_is_read(row) -> None:
    p = read(row.example + "\n")
    iterations, total, epochs, value, name = SAID[row.name]
    assert (p.iterations, p.total_iterations, round(p.epochs, 4)) == (iterations, total, epochs)
    if name is not None:
        assert (p.value, p.value_name) == (value, name)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_line_is_read_in_each_case_that_its_row_allows(row) -> None:
    line = row.example.split("\n")[-1].lstrip()
    other = line[0].swapcase() + line[1:]
    assert line[0] in FIRST
    assert row.pattern.fullmatch(other) is None or other[0] in FIRST


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_line_that_only_begins_or_ends_like_a_row_is_not_read(row) -> None:
    line = row.example.split("\n")[-1].strip()
    for prose in (f"{line} as we said", f"He said: {line}", f"{line} {line}"):
        found = FormatMatcher().line(prose)
        assert found is None or found == ProgressLine("another bar")


@pytest.mark.parametrize(
    "prose",
    [
        "Epoch 3/30 was the best one",
        "Epoch 5: early stopping, patience: 3",
        "In epoch 3, Loss: 0.4 was seen",
        "Test set: 10000 images",
        "3/10 - all tests passed",
        "12/60 of them are done",
        "{'loss': 0.5, 'epoch': 3}",
        "{'epoch': 3}",
        "Downloading data: 100%|██████████| 400/400 [00:02<00:00, 180.1it/s]",
        "Validation DataLoader 0:  40%|████      | 4/10 [00:00<00:00, 66.10it/s, step=9]",
        "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 12.00it/s]",
        "Epoch 31/30",
    ],
)
def test_prose_and_bars_of_other_things_are_no_progress(prose: str) -> None:
    p = read(f"{prose}\n", f"{prose}\r", prose)
    assert (p.iterations, p.epochs, p.first_step_at, p.value) == (0, 0.0, None, None)


@pytest.mark.parametrize(
    ("line", "epochs", "value", "name"),
    [
        ("Epoch 7, Loss: 0.25", 7.0, 0.25, "loss"),
        ("Epoch: 7 | Train Loss: 0.31 | Val. Loss: 0.25 | Val. Acc: 91.25%", 7.0, 91.25, "val_acc"),
        ("epoch 7/10 - loss: 0.31 - val_loss: 0.25 - lr: 0.001", 7.0, 0.25, "val_loss"),
        ("Epoch [7/10], Loss: nan", 7.0, None, ""),
        ("Epoch 7/10, Loss: 0.25, Time: 12.1s", 7.0, 0.25, "loss"),
    ],
)
def test_a_line_per_epoch_is_read_in_its_usual_spellings(line: str, epochs: float, value: object, name: str) -> None:
    p = read(line + "\n")
    assert (p.epochs, p.value, p.value_name) == (epochs, value, name)


def test_an_epoch_is_counted_from_zero_where_zero_was_seen() -> None:
    assert read("Epoch 0, Loss: 0.9\nEpoch 1, Loss: 0.8\n").epochs == 2.0
    assert read("Epoch 0:  50%|█████     | 30/60 [00:03<00:05,  7.1it/s]\n").iterations == 30
    assert read("Epoch 1:  50%|█████     | 30/60 [00:03<00:05,  7.1it/s]\n").iterations == 30
    assert read("Epoch 1:  50%|█████     | 30/60 [00:03<00:05,  7.1it/s, v_num=0]\n").iterations == 90


def test_each_update_of_a_bar_is_a_step_of_its_own_also_the_last_without_an_end() -> None:
    p = read(
        "Epoch 0:   0%|          | 0/60 [00:00<?, ?it/s, v_num=0]",
        "\rEpoch 0:   2%|▏         | 1/60 [00:00<00:08,  7.1it/s, v_num=0, train_loss_step=0.9]",
        "\rEpoch 0:   3%|▎         | 2/60 [00:00<00:08,  7.1it/s, v_num=0, train_loss_step=0.7]",
    )
    assert (p.iterations, p.first_step_at, p.last_step_at, p.value) == (2, 2.0, 3.0, 0.7)


def test_a_bar_that_was_cut_anywhere_is_read_once_it_is_whole() -> None:
    text = "\rEpoch 3:  40%|████      | 24/60 [00:03<00:05,  7.1it/s, v_num=0, train_loss=0.52]"
    for cut in range(1, len(text)):
        assert read(text[:cut]).iterations == 0
        p = read(text[:cut], text[cut:])
        assert (p.iterations, p.evaluations) == (204, 1)


BAR = "\r 40%|████      | {}/{} [01:02<01:33,  6.40it/s]"


def test_a_bar_without_a_name_has_no_total_until_it_is_known_to_be_the_trainings() -> None:
    bar = BAR
    p = read(bar.format(400, 1000), bar.format(401, 1000) + "\r")
    assert (p.iterations, p.total_iterations) == (401, None), "it may be that of an epoch"
    p = read(bar.format(399, 1000), f"\r{HF_LOG}\n", bar.format(400, 1000), bar.format(8, 10), "\r")
    assert (p.iterations, p.total_iterations, p.epochs) == (400, 1000, 1.2)
    assert read("  Total optimization steps = 1,000\n", bar.format(1, 1000)).iterations == 1


def bars(n: int, *more: str) -> list[str]:
    """The pieces of a bar without a name, then more."""
    return [*(BAR.format(i, n) for i in range(1, n + 1)), *more]


def test_a_bar_that_begins_anew_is_that_of_an_epoch_and_its_length_never_the_trainings() -> None:
    p = read(*bars(20), *bars(20)[:5], "\r")
    assert (p.iterations, p.total_iterations) == (25, None)
    p = read(*bars(20), *bars(5), *bars(20)[:6], "\r")
    assert (p.iterations, p.total_iterations) == (26, None), "that of the validation between does not count"
    p = read("Epoch 3/10\n", *bars(20)[:6], "\r")
    assert (p.iterations, p.total_iterations) == (46, 200), "of 10 epochs"
    p = read(*bars(20), "\nEpoch 1/10, loss: 0.5\n", *bars(20)[:3], "\r")
    assert (p.iterations, p.total_iterations) == (23, 200)
    p = read(*(f"step {i}/20\n" for i in range(1, 21)), "step 1/20\n")
    assert (p.iterations, p.total_iterations) == (21, None)


def test_a_count_that_may_begin_anew_gives_way_to_that_of_the_training() -> None:
    p = read("Epoch 7/10, loss: 0.5\n", "step=3 total=400 time=2\n", "Epoch 8/10, loss: 0.5\n", *bars(20)[:9], "\r")
    assert (p.iterations, p.total_iterations, p.epochs) == (3, 400, 8.0)
    assert read(*bars(500), "step=3 total=400\n").iterations == 3, "as a bar of data that were prepared"


def test_a_bar_that_begins_anew_after_a_restart_is_no_lost_work() -> None:
    reader = ProgressReader()
    for generation in (1, 2):
        reader.new_generation(float(generation))
        reader.new_output(generation)
        reader.feed("".join(bars(20)[:9]).encode() + b"\r", generation + 0.5)
    assert reader.lost is None or not reader.lost.iterations


@pytest.mark.parametrize(
    "prefix",
    [
        "2024-05-01 10:00:00,123 - train - INFO - ", "2024-05-01 10:00:00,123 INFO train: ", "INFO:root:", "INFO: ",
        "[2024-05-01 10:00:00,123][train][INFO] - ", "2024-05-01 10:00:00.123 | INFO     | __main__:main:12 - ",
        "[2024-05-01 10:00:00] ", "2024-05-01T10:00:00.123Z INFO ", "I0501 10:00:00.123456 140123456 train.py:12] ",
        "[04/14 09:05:02] d2.utils.events INFO:  ", "05/01 10:00:00 - mmengine - INFO - ",
        "2023-01-05 16:34:37,748   INFO  ",
        "[05/01 10:00:00 d2.utils.events]:  ", "INFO - ", "[INFO] ", "[INFO|trainer.py:12] 2024-05-01 10:00:00,123 >> ",
    ],
)  # fmt: skip
@pytest.mark.parametrize("line", ["Epoch [3/30], Step [100/600], Loss: 0.4213", "Epoch 3/30, loss: 0.5", "step 9/20"])
def test_what_a_logger_puts_before_a_line_is_passed_over(prefix: str, line: str) -> None:
    bare, logged = read(f"{line}\n"), read(f"{prefix}{line}\n")
    assert (logged.iterations, logged.total_iterations, logged.epochs) == (
        bare.iterations,
        bare.total_iterations,
        bare.epochs,
    )
    assert logged.iterations


@pytest.mark.parametrize(
    ("line", "iterations", "total", "value"),
    [
        ("Epoch 3/400 loss=0.5", 3, 400, 0.5),
        ("step 9/20 loss 0.5", 9, 20, 0.5),
        ("Step [9/20], Loss: 0.5", 9, 20, 0.5),
        ("iter 9:", 9, None, None),
        ("iter 0: loss 10.9886, time 2741.22ms, mfu -100.00%", 0, None, 10.9886),  # nanoGPT
        ("step 2000: train loss 1.7648, val loss 1.8857", 2000, None, 1.8857),
        ("epoch 9 of 20, loss: 0.5", 9, 20, 0.5),
        ("Iteration 7, loss = 0.69", 7, None, 0.69),  # scikit-learn's MLP
        ("[0]\tvalidation_0-logloss:0.60491", 1, None, None),
        ("[100]\tvalid_0's binary_logloss: 0.42\tvalid_0's auc: 0.9", 100, None, None),
        (
            "04/21 21:03:53 - mmengine - INFO - Epoch(train) [2][10/90]  lr: 1.000e-02  eta: 0:00:25  time: 0.010  "
            "data_time: 0.000  memory: 0  loss: 11.4723", 100, None, 11.4723,
        ),
        (
            "2018-10-23 10:51:07,015 - INFO - Epoch [1][50/2500]     lr: 0.02000, time: 1.090, data_time: 0.015, "
            "loss_reg: 0.0096, acc: 99.0479, loss: 0.0394", 50, None, 0.0394,
        ),
        (
            "[04/14 09:05:02] d2.utils.events INFO:  eta: 0:11:54  iter: 119  total_loss: 9.214  loss_cls: 2.549  "
            "time: 0.8153  data_time: 0.0220  lr: 0.001199  max_mem: 28515M", 120, None, 9.214,
        ),
    ],
)  # fmt: skip
def test_what_is_often_printed_is_read(line: str, iterations: int, total: int | None, value: float | None) -> None:
    p = read(f"{line}\n")
    assert (p.iterations, p.total_iterations, p.value) == (iterations, total, value)


@pytest.mark.parametrize(
    "line",
    [
        "iter=100000 total=5 step=3000",
        "Namespace(batch_size=32, step=3000, total=5000, lr=0.1)",
        "args: TrainConfig(iter=100000, total_steps=200000)",
        "step=3000 iter=100000",
        '{"iter": 100000, "step": 3000}',
        "total=5 step=3000",
    ],
)
def test_a_printed_configuration_is_no_progress(line: str) -> None:
    p = read(f"{line}\n")
    assert (p.iterations, p.total_iterations, p.first_step_at) == (0, None, None)


def test_what_keras_finds_in_validation_behind_the_last_batch_of_an_epoch_counts_and_evaluate_does_not() -> None:
    bar = "\r16/16 ━━━━━━━━━━━━━━━━━━━━ 1s 27ms/step - accuracy: 0.{0}000 - loss: 0.7000"
    p = read(f"Epoch 1/2\n{bar.format(4)}", f"{bar.format(5)} - val_accuracy: 0.6000 - val_loss: 0.7140\n")
    assert (p.iterations, p.total_iterations, p.value, p.value_name) == (16, 32, 0.6, "val_accuracy")
    p = read(f"Epoch 1/2\n{bar.format(4)}\n", f"{bar.format(9)}\n")
    assert (p.iterations, p.value, p.value_name) == (16, 0.7, "loss")


def test_what_hugging_face_says_of_speed_and_gradients_is_no_measure() -> None:
    p = read("{'eval_runtime': 1.5, 'eval_samples_per_second': 90.1, 'epoch': 1.0}\n", HF_LOG + "\n")
    assert (p.value_name, p.value) == ("loss", 0.52)
    strings = read("{'loss': '0.52', 'grad_norm': '1.3', 'learning_rate': '4.9e-05', 'epoch': '1.2'}\n")
    assert (strings.epochs, strings.value) == (1.2, 0.52)


def test_values_of_one_data_set_rank_alike_whatever_it_is_called() -> None:
    assert rank("eval_loss") == rank("valid_loss") == rank("validation_loss") == rank("val_loss")
    assert rank("train_loss") == rank("train_loss_step") == rank("loss")
    assert rank("v_num") is rank("lr") is None


@given(st.lists(st.sampled_from([row.example for row in TABLE]) | st.text(max_size=40), max_size=8), st.data())
def test_whatever_is_printed_nothing_is_raised_and_counts_fall_only_for_a_better_one(
    lines: list[str], data: st.DataObject
) -> None:
    reader, text = ProgressReader(), "\r".join(lines).encode()
    before, falls = reader.progress, 0
    while text:
        cut = data.draw(st.integers(1, len(text)))
        reader.feed(text[:cut], 1.0)
        text = text[cut:]
        after = reader.progress
        assert after.epochs >= before.epochs
        falls += after.iterations < before.iterations
        before = after
    assert falls <= 2, "from epochs to a count that may begin anew, and from that to the training's"
