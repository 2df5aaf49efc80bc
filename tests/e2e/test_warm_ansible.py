"""The process that keeps Ansible loaded: one for all runs, ends with its owner, is replaced when it has ended."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator.errors import Transient
from launcher import playbook
from tests.e2e.test_launcher import CANARY, ROOT, alive
from tests.e2e.test_playbooks import running
from tests.patience import eventually, patient

PLAY = """\
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: say
      ansible.builtin.raw: /bin/sh -c {{ command | quote }}
"""
OWNER = """
import sys
from pathlib import Path
from launcher import playbook
folder = Path(sys.argv[1])
playbook.run(folder / "say.yml", folder, {"command": sys.argv[2]}, 600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "say.yml").write_text(PLAY)
    return tmp_path


def say(folder: Path, command: str, within: str = "") -> None:
    place = folder / within
    place.mkdir(exist_ok=True)
    playbook.run(folder / "say.yml", place, {"command": command}, patient(60))


def warm() -> set[int]:
    """The living processes of this one that keep Ansible loaded."""
    return {each.process.pid for each in playbook._warm._started.values() if each.process.poll() is None}


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


def test_runs_at_once_and_one_after_another_share_one_process(folder: Path) -> None:
    say(folder, "true")
    there = warm()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: say(folder, f"echo {number} >{folder}/said-{number}", f"run-{number}"), range(4)))
    assert warm() == there
    assert sorted(file.read_text() for file in folder.glob("said-*")) == [f"{number}\n" for number in range(4)]


def test_each_run_has_its_own_folder_and_variables_and_no_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGODB_URI", CANARY)
    for name in ("one", "two"):
        say(folder, f"(pwd; env) >{folder}/{name}.txt", name)
        said = (folder / f"{name}.txt").read_text()
        assert said.startswith(f"{folder}\n")  # Ansible works beside the playbook
        assert f"AWX_ISOLATED_DATA_DIR={folder}/{name}/ansible-say/" in said
        assert CANARY not in said
    for pid in warm():
        assert CANARY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize("text", ["true", "0123", "null", "1e3", "{{ 1 + 1 }}", "a: b", "ä 'ö' \U0001f600"])
def test_a_value_reaches_its_playbook_as_the_text_that_it_is(folder: Path, text: str) -> None:
    with pytest.raises(Transient, match="failed: ") as failure:
        say(folder, f"printf %s {shlex.quote(text)}; exit 1")
    assert str(failure.value) == f"task 'say' failed: {text}"


def test_when_it_was_killed_the_next_run_starts_another(folder: Path) -> None:
    say(folder, "true")
    ended = warm()
    for pid in ended:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not warm())
    say(folder, f"echo again >{folder}/said")
    assert (folder / "said").read_text() == "again\n"
    assert not warm() & ended


def test_when_its_folder_was_tidied_away_the_next_run_starts_another(folder: Path) -> None:
    say(folder, "true")
    before = warm()
    for each in list(playbook._warm._started.values()):
        shutil.rmtree(each.folder)
    say(folder, "true")
    assert not warm() & before
    assert not [pid for pid in before if alive(pid)]


def test_when_it_hangs_the_run_that_took_too_long_ends_it_and_the_next_one_starts_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playbook, "ANSWERS_S", 0.2)
    say(folder, "true")
    (hung,) = warm()
    os.kill(hung, signal.SIGSTOP)
    with pytest.raises(Transient, match=r"^its playbook took longer than 1 s and was stopped$"):
        playbook.run(folder / "say.yml", folder, {"command": "true"}, 1)
    assert not alive(hung)
    assert not running(str(folder))
    say(folder, f"echo again >{folder}/said")
    assert (folder / "said").read_text() == "again\n"


def test_a_playbook_that_takes_too_long_ends_no_other_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playbook, "ANSWERS_S", patient(60))
    say(folder, "true")
    before = warm()
    with pytest.raises(Transient, match="took longer"):
        playbook.run(folder / "say.yml", folder, {"command": "sleep 600"}, 1)
    say(folder, "true")
    assert warm() == before


def test_a_run_whose_process_is_killed_fails_in_one_sentence_and_leaves_nothing(folder: Path) -> None:
    say(folder, "true")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(say, folder, f"echo $$ >{folder}/shell; sleep 600")
        eventually((folder / "shell").exists)
        for pid in warm():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(Transient, match=r"^the process that runs playbooks has ended"):
            run.result(patient(60))
    assert not running(str(folder))
    assert not [pid for pid in map(int, (folder / "shell").read_text().split()) if alive(pid)]


def test_it_ends_with_its_owner_however_that_ends_and_takes_its_runs_along(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), f"echo $$ >{folder}/shell; sleep 600"], env=environment
    )
    try:
        eventually(lambda: (folder / "shell").exists() and (folder / "shell").read_text())
        family = [pid for pid in children(owner.pid) if b"launcher.warm_ansible" in _words(pid)]
        assert len(family) == 1
        family += children(family[0])
        assert list(folder.glob("reshape-ansible-*/socket"))
    finally:
        owner.kill()
        owner.wait()
    eventually(lambda: not [pid for pid in [*family, int((folder / "shell").read_text())] if alive(pid)])
    eventually(lambda: not list(folder.glob("reshape-ansible-*")))


def _words(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
