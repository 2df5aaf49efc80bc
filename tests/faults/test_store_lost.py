"""The store goes while trainings run: they go on as the same processes, lose no step, and the books are as before.

Real processes on one machine: what a store holds is deleted, put back as an old copy, damaged, while `reshape up` is
down or up. The oracle is what the trainers wrote down themselves (`tests/fakes/gpu_log.py`).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.e2e.up import TRAINERS, Up, running, wait_for

SAME = ("state", "uid", "generation", "launch", "num_gpus", "gpu_ids", "node", "trainer_pid", "reshapes", "submit_ts")
EIGHT = tuple(f"job{n}" for n in range(8))


class Ground:
    """`reshape up`, and trainings that end when they are told."""

    def __init__(self, up: Up, folder: Path) -> None:
        self.up, self.file = up, folder / "end"
        self.store = up.state / "reshape.sqlite"

    def submit(self, job_id: str, counts: list[int]) -> None:
        command = [sys.executable, str(TRAINERS / "until_told.py"), str(self.file)]
        doc = {"job_id": job_id, "command": command, "optional_num_gpus": counts, "elastic": True}
        self.up.client.submit({**doc, "job_type": "digits-numpy"})

    def books(self) -> dict[str, Any]:
        jobs = {job["job_id"]: {field: job.get(field) for field in SAME} for job in self.up.client.jobs()}
        return {"jobs": jobs, "gpus": {g["gpu_id"]: (g["state"], g["job_id"]) for g in self.up.client.gpus()}}

    def differ(self, before: dict[str, Any]) -> dict[str, Any]:
        """What is not as before: now and then."""
        now = self.books()
        both = {(table, key) for books in (now, before) for table in books for key in books[table]}
        pairs = {at: (now[at[0]].get(at[1]), before[at[0]].get(at[1])) for at in sorted(both)}
        return {f"{table} {key}": pair for (table, key), pair in pairs.items() if pair[0] != pair[1]}

    def settled(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The books, once all of these run and have reported."""

        def there() -> dict[str, Any] | None:
            now = self.books()
            jobs = [now["jobs"].get(name, {}) for name in names]
            fit = all(job.get("state") == "running" and job.get("trainer_pid") for job in jobs)
            return now if fit and not any(self.up.job(name)["reshape"] for name in names) else None

        return wait_for(there, what=f"{', '.join(names)} run")

    def older_copy(self, folder: Path) -> Path:
        """A copy of the store in which job `first` has all GPUs; since then `second` came, too, which gets some."""
        self.submit("first", [1, 2, 4])
        self.settled(("first",))
        self.up.stop()
        old = Path(shutil.copy(self.store, folder / "old.sqlite"))
        self.up.start()
        self.submit("second", [1])
        return old

    def wipe(self) -> None:
        for file in self.up.state.glob("reshape.sqlite*"):
            file.unlink()

    def goes_on(self, names: tuple[str, ...], before: dict[str, Any]) -> None:
        """The books are as they were, and every training makes steps under the generation that it had."""
        wait_for(lambda: not self.differ(before), 30, what=f"the books are as before: {self.differ(before)}")
        done = {name: len(self.up.steps(name)) for name in names}
        wait_for(lambda: all(len(self.up.steps(name)) > done[name] + 3 for name in names), what="all train on")
        assert not self.differ(before)

    def end(self, names: tuple[str, ...]) -> None:
        self.file.touch()
        for name in names:
            self.up.until(name, "completed")
            steps = self.up.steps(name)
            assert all(after == earlier + 1 for earlier, after in pairwise(steps)), (name, steps)
        assert self.up.violations() == []


@contextmanager
def ground(folder: Path, gpus: str) -> Iterator[Ground]:
    with running(folder / "state", gpus) as up:
        yield Ground(up, folder)


def test_a_store_that_was_deleted_while_nothing_acted_is_rebuilt_under_eight_running_trainings(tmp_path: Path) -> None:
    with ground(tmp_path, "8xV100") as there:
        for name in EIGHT:
            there.submit(name, [1])
        before = there.settled(EIGHT)
        there.up.stop()
        there.wipe()
        there.up.start()
        there.goes_on(EIGHT, before)
        assert "the store had lost it" in there.up.job("job0")["message"]
        there.end(EIGHT)


def test_with_an_old_copy_in_its_place_what_came_after_it_is_rebuilt(tmp_path: Path) -> None:
    """In the copy one job has all GPUs; since then it gave some to a second one, and a third one has come and ended."""
    with ground(tmp_path, "4xV100") as there:
        old = there.older_copy(tmp_path)
        before = there.settled(("first", "second"))
        assert before["jobs"]["first"]["num_gpus"] < 4
        there.up.kill()
        there.wipe()
        shutil.copy(old, there.store)
        there.up.start()
        there.goes_on(("first", "second"), before)
        there.end(("first", "second"))


def test_a_file_that_goes_or_is_replaced_under_reshape_up_is_no_deletion_of_jobs(tmp_path: Path) -> None:
    """Deleted, it is written back. Replaced by a copy from before the second job, it gets what memory has."""
    with ground(tmp_path, "4xV100") as there:
        old = there.older_copy(tmp_path)
        there.submit("waits", [8])
        before = there.settled(("first", "second"))
        there.wipe()
        there.goes_on(("first", "second"), before)
        assert there.up.log.count("was deleted; it is written back") == 1
        shutil.move(old, there.store)
        wait_for(lambda: "Another file has taken the place" in there.up.log, what="it is noticed")
        there.goes_on(("first", "second"), before)
        there.up.stop()
        there.up.start()
        there.goes_on(("first", "second"), before)
        there.end(("first", "second"))


def test_a_damaged_file_is_set_aside_and_every_training_goes_on(tmp_path: Path) -> None:
    with ground(tmp_path, "4xV100") as there:
        for name in ("first", "second"):
            there.submit(name, [1])
        before = there.settled(("first", "second"))
        there.up.stop()
        with there.store.open("r+b") as file:
            file.write(b"\x00" * there.store.stat().st_size)
        there.up.start()
        there.goes_on(("first", "second"), before)
        assert "was damaged: it is" in there.up.log and there.store.with_name("reshape.sqlite.damaged-1").exists()
        there.end(("first", "second"))
