"""Data sets that jobs name by an address, fetched by a real `reshape up` from a real server for real trainings."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.up import Up, View, running, wait_for
from tests.fakes.dataset_server import DataServer, serving

CONTENT = random.Random(11).randbytes(2_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
READS = (
    "import hashlib, os, signal, sys, time; path = os.environ['RESHAPE_DATASET']; "
    "print(path, hashlib.sha256(open(path, 'rb').read()).hexdigest(), flush=True); "
    "[print(f'step={n} total=20', flush=True) or time.sleep(float(sys.argv[1])) for n in range(1, 21)]"
)


def reader(job_id: str, data: DataServer, pause: str = "0", **more: object) -> View:
    command = [sys.executable, "-c", READS, pause]
    return {"job_id": job_id, "command": command, "optional_num_gpus": [1], "dataset": data.url, **more}


def output(up: Up, job_id: str) -> str:
    return next(path for path in up.state.glob(f"jobs/{job_id}-*/output.log")).read_text()


@pytest.fixture
def data() -> Iterator[DataServer]:
    with serving(CONTENT) as server:
        yield server


@pytest.mark.timeout(600)
def test_it_is_fetched_once_for_all_jobs_and_a_slow_one_keeps_no_other_job_from_starting(
    tmp_path: Path, data: DataServer
) -> None:
    data.go.clear()
    with running(tmp_path / "state", "4xV100") as up, serving(CONTENT) as other:
        for name in ("one", "two", "three"):
            up.client.submit(reader(name, data))
        wait_for(lambda: data.asked)
        up.client.submit(reader("quick", other, dataset_sha256=DIGEST))
        up.until("quick", "completed")
        assert {up.job(name)["state"] for name in ("one", "two", "three")} == {"initializing"}
        data.go.set()
        for name in ("one", "two", "three"):
            up.until(name, "completed")
        up.client.submit(reader("later", data))
        up.until("later", "completed")
        assert data.asked == ["/data.npz"], "once"
        said = {output(up, name).splitlines()[0] for name in ("one", "two", "three", "later")}
        assert len(said) == 1
        path, digest = said.pop().split()
        assert Path(path).parent.parent == up.state / "datasets" and path.endswith("/data.npz") and digest == DIGEST


@pytest.mark.timeout(600)
def test_one_that_cannot_be_fetched_fails_its_job_with_a_sentence(tmp_path: Path, data: DataServer) -> None:
    data.status = 404
    with running(tmp_path / "state", "2xV100") as up:
        up.client.submit({**reader("none", data), "dataset": f"{data.url}?sig=secret"})
        wrong = reader("wrong", data, dataset_sha256="0" * 64)
        failed = up.until("none", "failed")
        data.status = 200
        up.client.submit(wrong)
        assert failed["message"] == (
            f"could not be launched: {data.url}?... cannot be fetched: its server answered 404 (Not Found); correct "
            "the job's `dataset`"
        )
        assert f"has the SHA-256 {DIGEST}, not that" in up.until("wrong", "failed")["message"]
        assert "secret" not in up.log and "Traceback" not in up.log


@pytest.mark.timeout(600)
def test_a_coordinator_that_is_killed_meanwhile_goes_on_with_it(tmp_path: Path, data: DataServer) -> None:
    data.go.clear()
    with running(tmp_path / "state", "1xV100") as up:
        up.client.submit(reader("a", data))
        wait_for(lambda: list(up.state.glob("datasets/*/.part")))
        part = next(up.state.glob("datasets/*/.part"))
        wait_for(lambda: part.stat().st_size == data.piece)
        up.kill()
        data.go.set()
        up.start()
        up.until("a", "completed")
        assert DIGEST in output(up, "a")
        assert data.asked == ["/data.npz", "bytes=1000-"]


@pytest.mark.timeout(600)
def test_a_launch_that_waits_for_it_too_long_gives_its_gpu_back_and_the_download_goes_on(
    tmp_path: Path, data: DataServer
) -> None:
    data.tag = ""  # so that a second download would begin anew
    data.go.clear()
    with running(tmp_path / "state", "1xV100", RESHAPE_INIT_TIMEOUT_S="3") as up:
        up.client.submit(reader("slow", data))
        waits = wait_for(lambda: (job := up.job("slow"))["state"] == "submitted" and job["launch"] and job)
        assert waits["message"] == (
            f"could not be launched, tries again: its data set {data.url} is still being fetched (1.0 kB of 2.0 MB)"
        )
        data.go.set()
        assert up.until("slow", "completed")["retries"] == 0
        assert len(data.asked) == 1


@pytest.mark.timeout(600)
def test_a_job_that_is_cancelled_while_it_waits_for_it_is_over_at_once(tmp_path: Path, data: DataServer) -> None:
    data.go.clear()
    with running(tmp_path / "state", "1xV100") as up:
        up.client.submit(reader("a", data))
        wait_for(lambda: data.asked)
        up.client.cancel("a")
        up.until("a", "cancelled", 20)
        assert up.stop() == 0, "the download does not keep it from ending"


@pytest.mark.timeout(600)
def test_a_training_that_is_reshaped_reads_the_same_file(tmp_path: Path, data: DataServer) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, pathlib, signal, sys, time\n"
        "stop = []; signal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
        "print(os.environ['RESHAPE_DATASET'], os.path.getsize(os.environ['RESHAPE_DATASET']), flush=True)\n"
        "place = pathlib.Path(os.environ['RESHAPE_CHECKPOINTS'], 'step')\n"
        "step = int(place.read_text()) if place.exists() else 0\n"
        "while step < 400 and not stop:\n"
        "    step += 1; time.sleep(0.02); print(f'step={step} total=400', flush=True)\n"
        "place.write_text(str(step)); sys.exit(143 if stop else 0)\n"
    )
    with running(tmp_path / "state", "2xV100") as up:
        job = reader("a", data, optional_num_gpus=[1, 2], elastic=True, iterations=400)
        up.client.submit({**job, "command": [sys.executable, str(script)]})
        up.until("a", "running")
        up.client.reshape("a", 3 - len(up.job("a")["gpu_ids"]))
        up.until("a", "completed")
        lines = [line for line in output(up, "a").splitlines() if "data.npz" in line]
        assert len(lines) > 1 and len(set(lines)) == 1
        assert len(data.asked) == 1, json.dumps(data.asked)
