"""A data set is fetched whole or not at all, from a real web server that breaks off, changes and refuses."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.startup import fetch as fetching
from sidecar.startup.fetch import FetchFailed, FetchProgress, FetchStopped, fetch, shown
from tests.fakes.dataset_server import DataServer, serving
from tests.patience import eventually, patient

CONTENT = random.Random(7).randbytes(300_000)


@pytest.fixture
def data() -> Iterator[DataServer]:
    with serving(CONTENT) as server:
        yield server


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSES_S", (0.01, 0.01, 0.01))


def test_it_is_fetched_once_and_every_user_may_read_it(data: DataServer, tmp_path: Path) -> None:
    file, progress = tmp_path / "key" / "data.npz", FetchProgress()
    for _ in range(2):
        fetch(data.url, file, progress=progress)
    assert file.read_bytes() == CONTENT
    assert file.stat().st_mode & 0o777 == 0o644
    assert data.asked == ["/data.npz"]
    assert str(progress) == "300.0 kB of 300.0 kB"
    assert {path.name for path in file.parent.iterdir()} == {"data.npz", ".lock"}


def test_many_that_fetch_it_at_once_ask_for_it_once(data: DataServer, tmp_path: Path) -> None:
    data.go.clear()
    code = "import sys; from pathlib import Path; from sidecar.startup.fetch import fetch; "
    code += "fetch(sys.argv[1], Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, data.url, str(tmp_path / "data.npz")]
    started = [subprocess.Popen(command) for _ in range(4)]
    threads = [threading.Thread(target=fetch, args=(data.url, tmp_path / "data.npz")) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: data.asked)
    data.go.set()
    assert [one.wait(patient(30)) for one in started] == [0] * 4
    for thread in threads:
        thread.join()
    assert (tmp_path / "data.npz").read_bytes() == CONTENT
    assert len(data.asked) == 1


def test_one_that_breaks_off_goes_on_where_it_was(data: DataServer, tmp_path: Path) -> None:
    data.broken = 20  # each brings something, so none of them counts as a failure in a row
    fetch(data.url, tmp_path / "data.npz")
    assert (tmp_path / "data.npz").read_bytes() == CONTENT
    assert data.asked[:3] == ["/data.npz", "bytes=1000-", "bytes=2000-"]


def test_one_that_has_changed_meanwhile_begins_anew(data: DataServer, tmp_path: Path) -> None:
    data.go.clear()
    stop = threading.Event()
    part = tmp_path / ".part"
    thread = threading.Thread(target=_until_stopped, args=(data.url, tmp_path / "data.npz", stop))
    thread.start()
    eventually(lambda: part.exists() and part.stat().st_size == data.piece)
    stop.set()
    data.go.set()
    thread.join()
    data.content, data.tag = CONTENT[::-1], '"two"'
    fetch(data.url, tmp_path / "data.npz")
    assert (tmp_path / "data.npz").read_bytes() == CONTENT[::-1]
    assert len(data.asked) == 2 and data.asked[1].startswith("bytes=")


def _until_stopped(url: str, file: Path, stop: threading.Event) -> None:
    with pytest.raises(FetchStopped):
        fetch(url, file, stopped=stop.is_set)


def test_a_server_that_knows_no_parts_is_asked_for_all_of_it_again(data: DataServer, tmp_path: Path) -> None:
    data.tag, data.broken = "", 2
    fetch(data.url, tmp_path / "data.npz")
    assert (tmp_path / "data.npz").read_bytes() == CONTENT
    assert data.asked == ["/data.npz"] * 3


def test_one_that_always_breaks_off_is_given_up(data: DataServer, tmp_path: Path) -> None:
    data.tag, data.broken = "", 100
    with pytest.raises(FetchFailed, match=r"data\.npz broke off after 1\.0 kB of 300\.0 kB; look whether"):
        fetch(data.url, tmp_path / "data.npz")
    assert not (tmp_path / "data.npz").exists()
    assert len(data.asked) == 4


@pytest.mark.parametrize(
    ("status", "times", "words"),
    [
        (404, 1, r"its server answered 404 \(Not Found\); correct the job's `dataset`"),
        (403, 1, r"its server answered 403 \(Forbidden\)"),
        (503, 4, r"its server answered 503 \(Service Unavailable\); look whether"),
        (429, 4, "its server answered 429"),
    ],
)
def test_a_refusal_is_a_sentence_and_only_what_may_pass_is_tried_again(
    data: DataServer, tmp_path: Path, status: int, times: int, words: str
) -> None:
    data.status = status
    with pytest.raises(FetchFailed, match=words):
        fetch(f"{data.url}?token=secret", tmp_path / "data.npz")
    assert len(data.asked) == times
    assert not (tmp_path / "data.npz").exists()


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/data", "data:,x"])
def test_no_server_leads_it_to_anything_but_http(data: DataServer, tmp_path: Path, target: str) -> None:
    data.status, data.location = 302, target
    with pytest.raises(FetchFailed):
        fetch(data.url, tmp_path / "data.npz")
    assert not (tmp_path / "data.npz").exists()


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "/etc/passwd", ""])
def test_it_opens_nothing_but_http(tmp_path: Path, address: str) -> None:
    with pytest.raises(FetchFailed):
        fetch(address, tmp_path / "data.npz")
    assert not (tmp_path / "data.npz").exists()


def test_a_redirect_to_another_server_is_followed(data: DataServer, tmp_path: Path) -> None:
    with serving(b"elsewhere") as other:
        data.status, data.location = 302, other.url
        fetch(data.url, tmp_path / "data.npz")
    assert (tmp_path / "data.npz").read_bytes() == b"elsewhere"


def test_nobody_who_listens_is_a_sentence(tmp_path: Path) -> None:
    with serving(b"") as gone:
        pass
    with pytest.raises(FetchFailed, match=r"data\.npz cannot be fetched \(.*refused.*\); look whether"):
        fetch(gone.url, tmp_path / "data.npz")


def test_more_than_the_disk_has_room_for_is_refused_at_once(data: DataServer, tmp_path: Path) -> None:
    data.length = 10**18
    with pytest.raises(FetchFailed, match=r"needs 1000000\.0 TB more than is there, and .* has room for .*: make room"):
        fetch(data.url, tmp_path / "data.npz")
    assert not (tmp_path / ".part").exists()


def test_a_folder_that_cannot_be_written_is_a_sentence(data: DataServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FetchFailed, match=r"the data set cannot be written to .*/file/key"):
        fetch(data.url, tmp_path / "file" / "key" / "data.npz")


def test_another_sha256_than_that_of_the_job_is_refused(data: DataServer, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=f"has the SHA-256 {hashlib.sha256(CONTENT).hexdigest()}, not that"):
        fetch(data.url, tmp_path / "data.npz", "0" * 64)
    assert not (tmp_path / "data.npz").exists()
    fetch(data.url, tmp_path / "data.npz", hashlib.sha256(CONTENT).hexdigest().upper())
    assert (tmp_path / "data.npz").read_bytes() == CONTENT


def test_what_may_be_secret_in_an_address_is_not_shown() -> None:
    assert shown("https://me:pw@host:1/a/b.npz?sig=secret#x") == "https://host:1/a/b.npz?..."


def init_container(url: str, file: Path) -> subprocess.Popen[str]:
    """As in a pod, except that there it is the first process."""
    command = [sys.executable, "-m", "sidecar.startup.fetch", "--to", str(file)]
    environment = {**os.environ, "RESHAPE_FETCH": url}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_the_init_container_fetches_it_or_ends_with_one_sentence(data: DataServer, tmp_path: Path) -> None:
    file = tmp_path / "key" / "data.npz"
    assert init_container(data.url, file).wait(patient(30)) == 0
    assert file.read_bytes() == CONTENT
    data.status = 404
    failed = init_container(f"{data.url}?token=secret", tmp_path / "other" / "data.npz")
    _, said = failed.communicate(timeout=patient(30))
    assert failed.returncode == 1
    assert said.startswith("http://127.0.0.1") and said.count("\n") == 1 and "secret" not in said


def test_an_init_container_that_is_stopped_leaves_what_the_next_one_goes_on_with(
    data: DataServer, tmp_path: Path
) -> None:
    data.go.clear()
    part = tmp_path / ".part"
    first = init_container(data.url, tmp_path / "data.npz")
    eventually(lambda: part.exists() and part.stat().st_size == data.piece)
    first.terminate()
    assert first.wait(patient(30)) == 143
    data.go.set()
    assert init_container(data.url, tmp_path / "data.npz").wait(patient(30)) == 0
    assert (tmp_path / "data.npz").read_bytes() == CONTENT
    assert data.asked == ["/data.npz", "bytes=1000-"]
