"""`shares.yaml`: what is refused and with what words, and that a broken one keeps the last good one."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_scheduler.shares import QueueShare, Shares, UserShare
from coordinator.errors import Rejected
from coordinator.scheduling.shares_file import SharesFile, parse
from tests.fakes.store import MemoryStore

GOOD = """
queues:
  vision: {weight: 2, guaranteed: 4, limit: 6, users: [ada, bob], user_limit: 4, max_jobs: 9}
  nlp: {borrow: false, owners: shared}
  idle:
users:
  ada: {weight: 3, queue: vision}
gpu_values: {V100: 1, K80: 0.2}
half_life: 12h
patience: 90s
"""


def test_all_that_can_be_said_is_read() -> None:
    vision = QueueShare(2.0, 4, 6, user_limit=4, max_jobs=9, users=("ada", "bob"))
    assert parse(GOOD, 8) == Shares(
        {"vision": vision, "nlp": QueueShare(borrow=False, owners="shared"), "idle": QueueShare()},
        {"ada": UserShare(3.0, "vision")},
        {"V100": 1.0, "K80": 0.2},
        half_life_s=43_200.0,
        patience_s=90.0,
    )


def test_an_empty_file_says_nothing() -> None:
    assert parse("") == parse("# to be filled\n") == Shares()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("queues: {a: {limit: 1, guaranteed: 2}}", "Queue a has a limit of 1, below the 2 GPUs that it is guaranteed"),
        ("queues: {a: {guaranteed: 9}}", "The queues are guaranteed 9 GPUs together, and there are 8"),
        ("queues: {a: {wieght: 2}}", "Queue a is not valid: object contains unknown field `wieght`"),
        ("queues: {a: {limit: x}}", "Queue a is not valid: expected `int | null`, got `str`, at `limit`"),
        ("queues: {a: {weight: -1}}", "Queue a is not valid: expected `float` >= 0.0, at `weight`"),
        ("queues: {'a b': {}}", "The name of queue 'a b' is not valid"),
        ("users: {ada: {queue: vision}}", "User ada belongs to queue 'vision', which `queues` does not name"),
        ("users: {ada: {weight: 0}}", "User ada is not valid"),
        ("half_life: 3 days", "half_life must be a duration such as 90s, 15m or 24h, not '3 days'"),
        ("queues: [a", "It is no YAML, line 1"),
        ("- a", "The file is not valid: expected `object`, got `array`"),
        ("quotas: {}", "The file is not valid: object contains unknown field `quotas`"),
        ("queues: {a: !!python/object:os.system {}}", "It is no YAML, line 1"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_sentence(text: str, words: str) -> None:
    with pytest.raises(Rejected, match=r".") as refused:
        parse(text, 8)
    assert str(refused.value).startswith(words)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shares.yaml"


def test_a_file_binds_once_it_is_there_and_no_longer_once_it_is_gone(path: Path) -> None:
    file = SharesFile(str(path), MemoryStore())
    file.refresh(4)
    assert (file.shares, file.problem) == (Shares(), "")
    path.write_text("queues: {a: {guaranteed: 2}}")
    file.refresh(4)
    assert file.shares.queue("a").guaranteed == 2
    path.unlink()
    file.refresh(4)
    assert file.shares == Shares()


def test_a_broken_file_keeps_the_last_good_one_and_says_so(path: Path) -> None:
    file = SharesFile(str(path), MemoryStore())
    path.write_text("queues: {a: {guaranteed: 2}}")
    file.refresh(4)
    path.write_text("queues: {a: {guaranteed: many}}")
    file.refresh(4)
    assert file.shares.queue("a").guaranteed == 2
    assert file.problem.startswith(f"{path} does not bind: Queue a is not valid: expected `int`, got `str`")
    assert file.problem.endswith("Until it is corrected, the last good one does.")
    path.write_text("queues: {a: {guaranteed: 3}}")
    file.refresh(4)
    assert (file.shares.queue("a").guaranteed, file.problem) == (3, "")


def test_a_broken_file_keeps_the_last_good_one_also_across_a_restart(path: Path) -> None:
    store = MemoryStore()
    path.write_text("queues: {a: {guaranteed: 2}}")
    SharesFile(str(path), store).refresh(4)
    path.write_text("queues: [")
    later = SharesFile(str(path), store)
    later.refresh(4)
    assert later.shares.queue("a").guaranteed == 2
    assert later.problem


def test_a_file_that_is_too_much_for_the_gpus_that_are_left_says_so(path: Path) -> None:
    file = SharesFile(str(path), MemoryStore())
    path.write_text("queues: {a: {guaranteed: 4}}")
    file.refresh(0)  # none are registered yet: nothing is known
    assert file.problem == ""
    file.refresh(2)
    assert "guaranteed 4 GPUs together, and there are 2" in file.problem
    assert file.shares.queue("a").guaranteed == 4


def test_a_new_text_is_written_only_if_it_can_bind(path: Path) -> None:
    file = SharesFile(str(path), MemoryStore())
    file.write("queues: {a: {guaranteed: 2}}", 4)
    with pytest.raises(Rejected, match="guaranteed 5 GPUs"):
        file.write("queues: {a: {guaranteed: 5}}", 4)
    assert path.read_text() == "queues: {a: {guaranteed: 2}}"
    assert [one.name for one in path.parent.iterdir()] == ["shares.yaml"]


def test_without_a_path_there_is_nothing_to_write() -> None:
    with pytest.raises(Rejected, match="set RESHAPE_SHARES"):
        SharesFile("", MemoryStore()).write("", 4)
