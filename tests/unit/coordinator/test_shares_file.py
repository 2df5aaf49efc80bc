"""`shares.yaml`: what is refused and with what words, and that a broken one keeps the last good one."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_scheduler.shares import QueueShare, Shares, UserShare
from coordinator.errors import Rejected
from coordinator.scheduling.shares_file import LAST_GOOD, TABLE, SharesFile, parse
from tests.fakes.store import MemoryStore

EIGHT = {"V100": 6, "K80": 2}
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
most_reserved: 48h
"""


def test_all_that_can_be_said_is_read() -> None:
    vision = QueueShare(2.0, 4, 6, user_limit=4, max_jobs=9, users=("ada", "bob"))
    assert parse(GOOD, EIGHT) == Shares(
        {"vision": vision, "nlp": QueueShare(borrow=False, owners="shared"), "idle": QueueShare()},
        {"ada": UserShare(3.0, "vision")},
        {"V100": 1.0, "K80": 0.2},
        half_life_s=43_200.0,
        patience_s=90.0,
        most_reserved_s=172_800.0,
    )


def test_a_guarantee_may_be_of_gpu_types() -> None:
    found = parse("queues: {a: {guaranteed: {V100: 2, K80: 0}, borrow: false}}", EIGHT).queue("a")
    assert (found.guaranteed, found.guaranteed_types, found.guaranteed_in_all, found.most) == (0, {"V100": 2}, 2, 2)


def test_users_are_named_as_the_owners_of_jobs_are() -> None:
    account = "system:serviceaccount:team-a:trainer"
    found = parse(
        f"queues: {{a: {{operators: ['{account}'], users: ['{account}', team-a]}}}}\nusers: {{'{account}': {{}}}}"
    )
    assert found.queue("a") == QueueShare(users=(account, "team-a"), operators=(account,))
    assert found.user(account) == UserShare()


def test_an_empty_file_says_nothing() -> None:
    assert parse("") == parse("# to be filled\n") == Shares()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("queues: {a: {limit: 1, guaranteed: 2}}", "Queue a has a limit of 1, below the 2 GPUs that it is guaranteed"),
        ("queues: {a: {guaranteed: 9}}", "The queues are guaranteed 9 GPUs together, and there are 8"),
        ("queues: {a: {guaranteed: {V100: 7}}}", "The queues are guaranteed 7 V100 together, and there are 6 of these"),
        (
            "queues: {a: {guaranteed: {V100: 4}}, b: {guaranteed: 5}}",
            "The queues are guaranteed 9 GPUs together, and there are 8; lower",
        ),
        ("queues: {a: {guaranteed: {V10O: 2}}}", "Queue a is guaranteed GPUs of type 'V10O'; the types are K80, V100."),
        ("queues: {a: {limit: 1, guaranteed: {V100: 1, K80: 1}}}", "Queue a has a limit of 1, below the 2 GPUs"),
        (
            "queues: {a: {guaranteed: [V100]}}",
            "Queue a: guaranteed must be a whole number from 0 to 1,000,000, or one for each GPU type, such as {V100:",
        ),
        (
            "queues: {a: {guaranteed: {K80: 0, V100: two}}}",
            "Queue a: an entry of guaranteed must be a whole number from 0 to 1,000,000, not 'two'.",
        ),
        ("queues: {a: {guaranteed: {V100: 1.5}}}", "Queue a: an entry of guaranteed must be a whole number from 0"),
        ("queues: {a: {wieght: 2}}", "Queue a has no setting wieght, did you mean weight?"),
        ("queues: {a: {limit: x}}", "Queue a: limit must be a whole number from 0 to 1,000,000, not 'x'."),
        ("queues: {a: {weight: -1}}", "Queue a: weight must be a number from 0 to 1,000,000, not -1."),
        ("queues: {a: {weight: .nan}}", "Queue a: weight must be a number from 0 to 1,000,000, not nan."),
        ("queues: {a: {borrow: maybe}}", "Queue a: borrow must be true or false, not 'maybe'."),
        (
            "queues: {a: {makespan_weight: -1}}",
            "Queue a: makespan_weight must be a number from 0 to 1,000, not -1.",
        ),
        ("queues: {a: {users: ada}}", "Queue a: users must be a list, such as [ada, bob], not 'ada'."),
        (
            "queues: {a: {users: [ada, b c]}}",
            "Queue a: an entry of users must be the name of a user, up to 253 letters",
        ),
        ("queues: {a: {budget: {per: day, gpu_hours: 1}}}", "Queue a: budget.per must be month or week, not 'day'."),
        ("queues: {a: {budget: {}}}", "Queue a: budget needs the setting gpu_hours."),
        (
            "queues: {a: {budget: 20}}",
            "Queue a: budget must be settings with their values (gpu_hours, per, warn_at), not",
        ),
        ("queues: {'a b': {}}", "'a b' cannot be the name of a queue: write up to 64 letters"),
        ("queues: {3: {}}", "The file: queues has the name 3, which YAML does not read as text; put it in quotation"),
        ("users: {'a b': {}}", "'a b' cannot be the name of a user: write the name of a user, up to 253 letters"),
        ("users: {ada: {queue: vision}}", "User ada belongs to queue 'vision', which `queues` does not name"),
        ("users: {ada: {weight: 0}}", "User ada: weight must be a number above 0, up to 1,000,000, not 0."),
        (
            "gpu_values: {V100: 1, A100: -1}",
            "The file: an entry of gpu_values must be a number above 0, up to 1,000, not -1",
        ),
        ("half_life: 3 days", "half_life must be a duration such as 90s, 15m or 24h, not '3 days'"),
        ("half_life: []", "The file: half_life must be a duration such as 90s, 15m or 24h, not []."),
        ("queues: [a", "Line 1 of the file is no YAML: look there"),
        ("- a", "The file must be settings with their values (queues, users, gpu_values, half_life, patience, min_run"),
        ("quotas: {}", "The file has no setting quotas; it can have queues, users, gpu_values"),
        ("queues: {a: !!python/object:os.system {}}", "Line 1 of the file has a value that is not read"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_sentence(text: str, words: str) -> None:
    with pytest.raises(Rejected, match=r".") as refused:
        parse(text, EIGHT)
    assert str(refused.value).startswith(words)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shares.yaml"


def test_a_file_binds_once_it_is_there_and_no_longer_once_it_is_gone(path: Path) -> None:
    file = SharesFile(str(path), MemoryStore())
    file.refresh({"V100": 4})
    assert (file.shares, file.problem) == (Shares(), "")
    path.write_text("queues: {a: {guaranteed: 2}}")
    file.refresh({"V100": 4})
    assert file.shares.queue("a").guaranteed == 2
    path.unlink()
    file.refresh({"V100": 4})
    assert file.shares == Shares()


def test_a_broken_file_keeps_the_last_good_one_and_says_so(path: Path) -> None:
    file = SharesFile(str(path), MemoryStore())
    path.write_text("queues: {a: {guaranteed: 2}}")
    file.refresh({"V100": 4})
    path.write_text("queues: {a: {guaranteed: many}}")
    file.refresh({"V100": 4})
    assert file.shares.queue("a").guaranteed == 2
    assert file.problem.startswith(f"{path} does not bind: Queue a: guaranteed must be a whole number from 0 ")
    assert file.problem.endswith("Until it is corrected, the last good one does.")
    path.write_text("queues: {a: {guaranteed: 3}}")
    file.refresh({"V100": 4})
    assert (file.shares.queue("a").guaranteed, file.problem) == (3, "")


def test_a_broken_file_keeps_the_last_good_one_also_across_a_restart(path: Path) -> None:
    store = MemoryStore()
    path.write_text("queues: {a: {guaranteed: 2}}")
    SharesFile(str(path), store).refresh({"V100": 4})
    path.write_text("queues: [")
    later = SharesFile(str(path), store)
    later.refresh({"V100": 4})
    assert later.shares.queue("a").guaranteed == 2
    assert later.problem


def test_a_text_that_an_older_version_kept_with_a_name_twice_still_binds(path: Path) -> None:
    store = MemoryStore()
    twice = "queues: {a: {guaranteed: 1}, a: {guaranteed: 2}}"
    store.put(TABLE, {"_id": LAST_GOOD, "text": twice})
    path.write_text(twice)
    file = SharesFile(str(path), store)
    file.refresh({"V100": 4})
    assert file.shares.queue("a").guaranteed == 2
    assert "given twice" in file.problem


def test_a_text_that_another_version_kept_still_binds_without_what_this_one_does_not_know(path: Path) -> None:
    store = MemoryStore()
    text = "queues: {a: {guaranteed: 2, of_tomorrow: 1}}\nusers: {ada: {weight: 2, of_tomorrow: 1}}\nof_tomorrow: 1"
    store.put(TABLE, {"_id": LAST_GOOD, "text": text})
    path.write_text(text)
    file = SharesFile(str(path), store)
    file.refresh({"V100": 4})
    assert (file.shares.queue("a").guaranteed, file.shares.user("ada").weight) == (2, 2.0)
    assert "of_tomorrow" in file.problem
    assert file.problem.endswith("the last good one does.")


@pytest.mark.parametrize("text", ["queues: [", "queues: {a: {guaranteed: many}}", None])
def test_a_kept_text_that_cannot_be_read_stops_no_decision(text: str | None, path: Path) -> None:
    store = MemoryStore()
    store.put(TABLE, {"_id": LAST_GOOD, **({} if text is None else {"text": text})})
    path.write_text("queues: {a: {guaranteed: many}}")
    file = SharesFile(str(path), store)
    file.refresh({"V100": 4})
    assert file.shares == Shares()
    if text is not None:
        assert file.problem.endswith("Until it is corrected, no shares do: the last good ones are refused, too.")
    path.write_text("queues: {a: {guaranteed: 2}}")
    file.refresh({"V100": 4})
    assert (file.shares.queue("a").guaranteed, file.problem) == (2, "")


def test_a_file_that_is_too_much_for_the_gpus_that_are_left_says_so(path: Path) -> None:
    file = SharesFile(str(path), MemoryStore())
    path.write_text("queues: {a: {guaranteed: 4}}")
    file.refresh({})  # none are registered yet: nothing is known
    assert file.problem == ""
    file.refresh({"V100": 2})
    assert "guaranteed 4 GPUs together, and there are 2" in file.problem
    assert file.shares.queue("a").guaranteed == 4


def test_a_new_text_is_written_only_if_it_can_bind(path: Path) -> None:
    file = SharesFile(str(path), MemoryStore())
    file.write("queues: {a: {guaranteed: 2}}", {"V100": 4})
    with pytest.raises(Rejected, match="guaranteed 5 GPUs"):
        file.write("queues: {a: {guaranteed: 5}}", {"V100": 4})
    assert path.read_text() == "queues: {a: {guaranteed: 2}}"
    assert [one.name for one in path.parent.iterdir()] == ["shares.yaml"]


def test_without_a_path_there_is_nothing_to_write() -> None:
    with pytest.raises(Rejected, match="set RESHAPE_SHARES"):
        SharesFile("", MemoryStore()).write("", {"V100": 4})
