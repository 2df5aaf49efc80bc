"""The verbs of `reshape store`, beside no coordinator, and what they say if something is wrong."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.adapters.clock import SystemClock
from coordinator.errors import Transient
from coordinator.recovery.transfer import import_all
from coordinator.stores.elector import Elector, Holder
from coordinator.stores.opening import open_store
from reshape.cli.main import run
from tests.fakes.world import FakeClock
from tests.patience import patient


def test_compact_removes_old_jobs_and_makes_the_file_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, wall = tmp_path / "reshape.sqlite", time.time()
    store = open_store(f"sqlite:///{file}")
    for number in range(300):
        doc = {"_id": f"j{number}", "closed": True, "finish_ts": wall - 7200 - number, "command": ["x" * 4000]}
        store.insert("jobs", doc)
    store.close()
    before = file.stat().st_size
    monkeypatch.setenv("RESHAPE_KEEP_JOBS", "7")
    assert run(["--state", str(tmp_path), "store", "compact"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "Removed 293 jobs, 0 decisions, 0 events, 0 observations, 0 predictions, 0 accounts, 0 reservations.\n"
    )
    assert file.stat().st_size < before / 4
    store = open_store(f"sqlite:///{file}")
    assert sorted(row["_id"] for row in store.list("jobs", {"closed": True})) == [f"j{n}" for n in range(7)]


@pytest.mark.parametrize(
    ("variable", "said"),
    [("", "There is no store"), ("-1", "RESHAPE_KEEP_JOBS must be"), ("x", "RESHAPE_KEEP_JOBS must be a whole number")],
)
def test_what_cannot_be_compacted_is_one_sentence(
    tmp_path: Path, variable: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if variable:
        monkeypatch.setenv("RESHAPE_KEEP_JOBS", variable)
        open_store(f"sqlite:///{tmp_path / 'reshape.sqlite'}").close()
    assert run(["--state", str(tmp_path), "store", "compact"]) == 1
    assert said in capsys.readouterr().err
    assert variable or not list(tmp_path.iterdir())


def verb(folder: Path, *words: str) -> int:
    return run(["--state", str(folder), "store", *words])


def job(name: str, gpus: list[str], **more: Any) -> dict[str, Any]:
    return {
        "_id": name, "job_id": name, "uid": f"uid-{name}", "state": "running", "closed": False, "version": 3,
        "launch": 1, "generation": 1, "gpu_ids": gpus, "num_gpus": len(gpus), "optional_num_gpus": [1],
        "env": {"KEY": "é"}, **more,
    }  # fmt: skip


def held(gpu: str, name: str | None) -> dict[str, Any]:
    return {
        "_id": gpu,
        "node": "n",
        "state": "in use" if name else "idle",
        "job_id": name,
        "held_by": name,
        "version": 1,
    }


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    store = open_store(f"sqlite:///{tmp_path / 'reshape.sqlite'}")
    for row in (job("one", ["g1"]), job("two", ["g2"]), job("old", [], state="completed", closed=True)):
        store.insert("jobs", row)
    for row in (held("g1", "one"), held("g2", "two"), held("g3", None)):
        store.insert("gpus", row)
    store.append_events([{"_id": n, "type": "x"} for n in range(1, 2001)])
    store.insert("predictions", {"_id": "p", "at": 1.0, "outcomes": []})
    store.insert("terms", {"_id": "coordinator", "pid": 1, "released": True, "version": 9})
    store.close()
    return tmp_path


def rows_of(folder: Path) -> dict[str, Any]:
    store = open_store(f"sqlite:///{folder / 'reshape.sqlite'}")
    try:
        return {table: store.list(table) for table in ("jobs", "gpus", "events", "decisions", "predictions")}
    finally:
        store.close()


def test_an_export_fills_another_store_with_the_same_rows(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "backup.jsonl", tmp_path / "other"
    assert verb(filled, "export", str(file)) == 0
    assert capsys.readouterr().out == f"Wrote 2,007 rows into {file}.\n" and file.stat().st_mode & 0o077 == 0
    assert verb(filled, "export", str(tmp_path / "nowhere" / "x")) == 1
    assert "name another file" in capsys.readouterr().err
    assert verb(other, "import", str(file)) == 0
    assert rows_of(other) == rows_of(filled)
    assert verb(other, "check") == 0 and "Nothing contradicts." in capsys.readouterr().out


def test_a_store_with_jobs_is_overwritten_only_by_force(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, before = filled / "backup.jsonl", rows_of(filled)
    assert verb(filled, "export", str(file)) == 0
    store = open_store(f"sqlite:///{filled / 'reshape.sqlite'}")
    store.insert("jobs", job("later", []))
    store.close()
    assert verb(filled, "import", str(file)) == 1
    assert "There are jobs in this store: --force" in capsys.readouterr().err
    assert verb(filled, "import", "--force", str(file)) == 0
    assert rows_of(filled) == before


def test_nothing_is_imported_where_a_coordinator_acts(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = filled / "backup.jsonl"
    assert verb(filled, "export", str(file)) == 0
    store = open_store(f"sqlite:///{filled / 'reshape.sqlite'}")
    me = Elector(store, SystemClock(), 15.0, Holder.of_process(os.getppid()))
    assert me.try_to_lead()
    assert verb(filled, "import", "--force", str(file)) == 1
    assert f"process {os.getppid()}) acts on this store: stop it" in capsys.readouterr().err
    me.resign()
    assert verb(filled, "import", "--force", str(file)) == 0


def test_a_term_that_is_lost_in_the_middle_ends_the_import(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = filled / "backup.jsonl"
    assert verb(filled, "export", str(file)) == 0
    store, clock = open_store(f"sqlite:///{filled / 'other.sqlite'}"), FakeClock()
    elector = Elector(store, clock, 0.5, Holder.of_process(os.getpid()))
    tries, tried = list[bool](), threading.Event()

    def try_to_lead() -> bool:
        tries.append(True)
        if len(tries) == 1:
            return Elector.try_to_lead(elector)
        if len(tries) > 3:
            tried.set()
        raise Transient("The store does not answer.")

    def append_events(events: Any) -> None:
        assert tried.wait(patient(10)), "one error must not end the thread that keeps the term"
        clock.time += 1.0

    monkeypatch.setattr(elector, "try_to_lead", try_to_lead)
    monkeypatch.setattr(store, "append_events", append_events)
    with pytest.raises(Transient, match="a coordinator may act on it now: import again by --force"):
        import_all(store, lambda: file.read_text().splitlines(), elector, force=False)
    assert store.list("predictions") == [], "what follows is not written"
    store.close()


ROW = '{"reshape_export": 1}\n{"table": "jobs", "row": {"_id": %s}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The file is empty"),
        ("{}", "This is no export"),
        ('{"reshape_export": 99}', "newer than this command's (1)"),
        ('{"reshape_export": 1}\n{"table": "jobs", "ro', "Line 2 is no JSON object"),
        ('{"reshape_export": 1}\n{"table": "sqlite_master", "row": {"_id": 1}}', "Line 2 is no row of a table"),
        ('{"reshape_export": 1}\n{"table": "jobs", "row": {"_id": 1, "a.b": 1}}', "Line 2 cannot be stored"),
        (f"{ROW % 2}\n{ROW[22:] % 1.0}", "Line 3 cannot be stored: The `_id` 1.0 is neither text nor a whole number"),
        (f"{ROW % 2}\n{ROW[22:] % 'true'}", "The `_id` True is neither text"),
        (f"{ROW % 1}\n{ROW[22:] % 1}", "Line 3 cannot be stored: The `_id` 1 comes twice in jobs"),
        (ROW.replace("}}", ', "x": "%s"}}') % (2, "y" * 2**24), "is larger than 16 MiB"),
        ('{"reshape_export": 1}\n' + "[" * 100_000, "Line 2 is no JSON object"),
    ],
)
def test_a_file_that_is_not_whole_changes_nothing(
    filled: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = rows_of(filled)
    (filled / "bad").write_text(text)
    assert verb(filled, "import", "--force", str(filled / "bad")) == 1
    assert said in capsys.readouterr().err and rows_of(filled) == before


def test_check_names_what_contradicts(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshape.cli.store_verbs.AGAIN_S", 0.0)
    store = open_store(f"sqlite:///{filled / 'reshape.sqlite'}")
    store.put("jobs", job("two", ["g1", "g9"], generation="x", num_gpus=1))
    store.put("gpus", held("g3", "gone"))
    store.put("gpus", {**held("g2", "one"), "state": "idle"})
    store.close()
    assert verb(filled, "check") == 1
    assert capsys.readouterr().out.splitlines() == [
        "Job two: generation must be a whole number, not 'x'; it is passed over until you correct or remove it.",
        "Job two says that it has 1 GPUs and names 2.",
        "GPU g1 is named by job one and by job two.",
        "Job two names GPU g9, of which there is no row.",
        "GPU g2 is idle and belongs to job one.",
        "GPU g3 belongs to job gone, which has no open document.",
    ]


def test_it_looks_at_the_store_that_the_last_up_used(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshape.cli.store_verbs.AGAIN_S", 0.0)
    state = tmp_path / "another"
    state.mkdir()
    assert verb(state, "check") == 1 and "There is no store" in capsys.readouterr().err
    (state / "up.json").write_text(json.dumps({"store": f"sqlite:///{filled / 'reshape.sqlite'}"}))
    assert verb(state, "check") == 0 and not (state / "reshape.sqlite").exists()
    assert verb(state, "export", str(tmp_path / "rows")) == 0
    capsys.readouterr()
    (state / "up.json").write_text(json.dumps({"store": "mongodb://me:s%40cret@host/reshape"}))
    assert verb(state, "import", str(tmp_path / "rows")) == 1
    assert capsys.readouterr().err == (
        "The last `reshape up` used mongodb://host/reshape: name the store to fill with --store or in RESHAPE_STORE.\n"
    )
    for other in ("{", "[]", '{"store": null}', '{"store": 7}'):
        (state / "up.json").write_text(other)
        assert verb(state, "check") == 1 and f"There is no store {state}" in capsys.readouterr().err


def test_settle_lets_one_of_two_go_on_and_cancels_the_other(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(filled, "settle", "one") == 1
    assert "Nothing contradicts job one, so there is nothing to settle." in capsys.readouterr().err
    store = open_store(f"sqlite:///{filled / 'reshape.sqlite'}")
    for name, gpus in (("one", ["g1"]), ("two", ["g1", "g2"])):
        store.put("jobs", job(name, gpus, contradiction="both train on GPU g1"))
    store.close()
    assert verb(filled, "settle", "two") == 0
    assert capsys.readouterr().out == "Job two goes on; cancelled: one.\n"
    now = {
        row["_id"]: (row["contradiction"], row.get("cancel")) for row in rows_of(filled)["jobs"] if row["_id"] != "old"
    }
    assert now == {"one": (None, True), "two": (None, None)}
    (lost,) = [row for row in rows_of(filled)["jobs"] if row["_id"] == "one"]
    assert lost["cancel_reason"] == "job two was chosen to go on with the GPUs that both claimed (reshape store settle)"
    assert {row["_id"]: row["held_by"] for row in rows_of(filled)["gpus"]} == {"g1": "two", "g2": "two", "g3": None}


def test_an_export_names_the_rows_that_no_import_takes(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a user's own program writes them into the file of SQLite."""
    deep = json.dumps({"_id": "deep", "notes": 0}).replace("0", "[" * 400 + "]" * 400)
    with closing(sqlite3.connect(filled / "reshape.sqlite")) as by_hand, by_hand:
        by_hand.execute("INSERT INTO documents VALUES ('nodes', 'deep', ?)", (deep,))
    copy = tmp_path / "copy.jsonl"
    assert verb(filled, "export", str(copy)) == 0
    said = "The row 'deep' of nodes is written, but cannot be imported again: The document is nested deeper than 100"
    assert capsys.readouterr().err.startswith(said)
    assert verb(tmp_path / "other", "import", str(copy)) == 1
    assert "make it flatter. Correct that line or delete it." in capsys.readouterr().err
    copy.write_text("".join(line for line in copy.read_text().splitlines(True) if '"deep"' not in line))
    assert verb(tmp_path / "other", "import", str(copy)) == 0


def test_what_is_no_ordinary_file_is_neither_replaced_nor_read(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    link = tmp_path / "link"
    os.mkfifo(pipe)
    for words in (["export", str(pipe)], ["import", "--force", str(pipe)]):
        assert verb(filled, *words) != 0
        assert "not a regular file" in capsys.readouterr().err
    assert pipe.is_fifo()
    own = filled / "reshape.sqlite"
    before = rows_of(filled)
    for name in (own, own.with_name("reshape.sqlite-wal")):
        assert verb(filled, "export", str(name)) == 1
        assert f"{name} belongs to the store itself: name another file." in capsys.readouterr().err
    assert rows_of(filled) == before
    link.symlink_to(tmp_path / "target")
    assert verb(filled, "export", str(link)) == 0
    assert link.is_symlink() and (tmp_path / "target").stat().st_size > 0


@pytest.mark.parametrize("words", [["check"], ["compact"], ["export", "copy"]], ids=" ".join)
def test_a_store_without_a_file_is_told(filled: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(filled, *words, "--store", "sqlite:///") == 1
    assert "There is no store" in capsys.readouterr().err


def test_check_prints_what_others_wrote_on_one_line_without_control_characters(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"sqlite:///{filled / 'reshape.sqlite'}")
    store.put("gpus", held("g9", "evil\x1b[2J\nNothing contradicts."))
    store.close()
    assert verb(filled, "check") == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\nNothing" not in out and "evil" in out
