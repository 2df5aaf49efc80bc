"""A store that a release wrote is read by what is here now, as CHANGELOG.md promises.

`tests/releases/` holds the export of each release's store, made by `reshape store export` after jobs had completed,
failed, been cancelled and reshaped, while one waited for a node to be opened. A release adds its own.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reshape.cli import main
from tests.e2e.up import ROOT, of_folder, running

STORES = sorted((ROOT / "tests" / "releases").glob("store-*.jsonl"))


def test_each_release_left_a_store() -> None:
    released = re.findall(r"^## \[(\d[\d.]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [path.stem.removeprefix("store-") for path in STORES] == sorted(released)


@pytest.mark.parametrize("exported", STORES, ids=lambda path: path.stem)
def test_a_store_of_a_release_is_read_and_its_waiting_job_is_run(
    tmp_path: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    store = f"sqlite:///{state / 'reshape.sqlite'}"
    assert main.run(["store", "import", "--store", store, str(exported)]) == 0
    assert main.run(["store", "check", "--store", store]) == 0
    assert "Nothing contradicts." in capsys.readouterr().out
    with running(state, ["lab=2xV100"]) as up:
        client = up.client
        ended = {name: client.job(name)["state"] for name in ("digits", "done", "fails", "stopped")}
        assert ended == {"digits": "completed", "done": "completed", "fails": "failed", "stopped": "cancelled"}
        digits = client.job("digits")
        assert (digits["iters_done"], digits["owner"]) == (6000, "ada")
        assert any(decision["candidates"] for decision in client.decisions("digits"))
        assert client.profiles("observations") or client.profiles("speed_profiles")
        assert "every node is closed" in str(client.job("waits")["message"])
        client.undrain("lab")
        up.until("waits", "completed")
    assert of_folder(tmp_path) == {}
