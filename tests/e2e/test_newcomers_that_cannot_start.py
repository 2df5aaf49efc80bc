"""A newcomer whose command, folder, interpreter or imports are wrong is found out before its victim is touched.

Through one real `reshape up` whose four GPUs are all in use by a job that could give two of them.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.up import TRAINERS, View, running, wait_for

PACED = "digits-numpy"  # a type whose speed is known, so that making room for a newcomer pays

SCRIPTS = {
    "gone": "#!/no/such/interpreter\n",
    "broken.py": "import os\nfor step in:\n    pass\n",
    "imports.py": "import os\nimport no_such_module\n",
    "fine.py": "import json\nprint('step=1 total=1')\n",
}

WRONG: dict[str, tuple[list[str], str]] = {
    "file": (["./nope"], "cannot start: no such file: ./nope (in {home}); correct the job's command"),
    "folder": (["true"], "cannot start: no such folder: {home}/absent; correct the job's `code`"),
    "interpreter": (["./gone"], "cannot start: no such file: /no/such/interpreter (asked for by ./gone);"),
    "script": ([sys.executable, "nope.py"], "cannot start: no such file: nope.py (in {home});"),
    "syntax": ([sys.executable, "broken.py"], "cannot start: SyntaxError: invalid syntax (broken.py, line 2);"),
    "module": (
        [sys.executable, "imports.py"],
        "cannot start: no module named no_such_module (imports.py, line 2)",
    ),
}


def newcomer(job_id: str, command: list[str], code: str) -> View:
    return {
        "job_id": job_id, "command": command, "code": code, "optional_num_gpus": [2], "job_type": PACED,
        "iterations": 20,
    }  # fmt: skip


@pytest.mark.timeout(600)
def test_newcomers_that_cannot_start_fail_with_a_sentence_and_their_victim_is_never_stopped(tmp_path: Path) -> None:
    home, told = tmp_path / "home", tmp_path / "end"
    home.mkdir()
    for name, text in SCRIPTS.items():
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    with running(tmp_path / "state", "4xV100") as up:
        command = [sys.executable, str(TRAINERS / "until_told.py"), str(told)]
        more = {"optional_num_gpus": [2, 4], "job_type": PACED, "iterations": 100_000, "elastic": True}
        up.client.submit({"job_id": "victim", "command": command, **more})
        before = up.until("victim", "running")
        wait_for(lambda: up.steps("victim"), what="the victim trains")
        assert before["num_gpus"] == 4
        for name, (words, sentence) in WRONG.items():
            up.client.submit(newcomer(name, words, str(home / "absent" if name == "folder" else home)))
            job = up.until(name, "failed")
            assert job["message"].startswith(sentence.format(home=home)), name
            assert not job["retries"], name
            now = up.until("victim", "running")
            same = ("generation", "trainer_pid", "num_gpus", "launch")  # each stop is a generation of its own
            assert {field: now[field] for field in same} == {field: before[field] for field in same}, name
        up.client.submit(newcomer("fine", [sys.executable, "fine.py"], str(home)))
        up.until("fine", "completed")
        assert up.job("victim")["generation"] > before["generation"], "room was made for the one that could start"
        told.touch()
        up.until("victim", "completed")
        steps = up.steps("victim")
        assert all(after == before + 1 for before, after in pairwise(steps)), steps
