"""What a sidecar refuses to start with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.config import ConfigError, read

GOOD = {
    "job_id": "j",
    "launch": 1,
    "coordinator": "http://127.0.0.1:1",
    "output": "o",
    "command": ["x"],
    "sidecar": None,
}


def put(folder: Path, key: bytes = b"secret-key\n", **changes: Any) -> Path:
    (folder / "launch.json").write_text(json.dumps({**GOOD, **changes}))
    (folder / "launch.key").write_bytes(key)
    return folder


def test_a_good_folder_is_read_and_the_key_is_not_shown(tmp_path: Path) -> None:
    settings = read(put(tmp_path, progress={"pattern": "x", "file": "p.json"}, workdir="/w", checkpoints="/c"))
    assert (settings.key, settings.pattern, settings.launch.heartbeat_s) == (b"secret-key", "x", 5.0)
    assert (settings.progress_file, settings.checkpoints) == (Path("/w/p.json"), Path("/c"))
    assert "secret-key" not in repr(settings)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"launch": "1"}, "launch"),
        ({"port": 70000}, "port"),
        ({"gpus": "four"}, "gpus"),
        ({"heartbeat_s": 0}, "heartbeat_s"),
        ({"coordinator": "127.0.0.1:8080"}, "coordinator"),
        ({"coordinator": "file:///etc/passwd"}, "coordinator"),
        ({"job_id": "a\nb"}, "job_id"),
        ({"job_id": ""}, "job_id"),
        ({"progress": {"pattern": "("}}, "progress.pattern"),
        ({"progress": "x"}, "progress"),
        ({"key": b""}, "launch.key"),
    ],
)
def test_a_bad_value_stops_the_start_with_its_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read(put(tmp_path, **changes))


def test_a_missing_or_broken_file_stops_the_start_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"launch\.json"):
        read(tmp_path)
    put(tmp_path)
    (tmp_path / "launch.json").write_text("{")
    with pytest.raises(ConfigError, match=r"launch\.json"):
        read(tmp_path)
    put(tmp_path)
    (tmp_path / "launch.key").unlink()
    with pytest.raises(ConfigError, match=r"launch\.key"):
        read(tmp_path)


def test_in_a_pod_the_keys_are_elsewhere_and_the_address_is_the_pods(tmp_path: Path) -> None:
    (keys := tmp_path / "keys").mkdir()
    settings = read(tmp_path, put(keys, pod=True, host="127.0.0.1"), "10.1.2.3")
    assert (settings.folder, settings.keys, settings.launch.host) == (tmp_path, keys, "10.1.2.3")
    assert settings.apart


def test_a_sidecar_that_the_shim_starts_is_in_the_trainers_container(tmp_path: Path) -> None:
    assert not read(put(tmp_path, pod=True, sidecar=["python", "-m", "sidecar"])).apart
    assert not read(put(tmp_path)).apart
