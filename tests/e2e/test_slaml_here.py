"""A Slaml on one machine, by the command line: its tasks hand on to each other, and it ends in time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.up import ROOT, Up, running

SLAML = """\
apiVersion: sla-operator.dcn.com/v1alpha1
kind: Slaml
metadata: {name: report}
spec:
  slaTarget: 10m
  tasks:
    - {taskName: prepare, CPU: 100m, command: [sh, -c, "seq 9 > numbers"]}
    - {taskName: count, containerReplicas: 2, CPU: 100m, modelParams: [{rows: 3}, {rows: 4}],
       command: [sh, -c, "head -n $ROWS numbers > counted-$ROWS"]}
"""


def reshape(up: Up, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "reshape", "--state", str(up.state), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_tasks_of_a_submitted_slaml_run_one_after_another_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "slaml.yaml").write_text(SLAML)
    with running(tmp_path / "state", "1xV100") as up:
        done = reshape(up, "submit", "-f", str(tmp_path / "slaml.yaml"), "--wait")
        assert (done.returncode, done.stderr) == (0, "slaml.default.report is completed.\n"), done.stdout
        assert "slaml.default.report is submitted" in done.stdout
        assert (tmp_path / "counted-3").read_text() == "1\n2\n3\n"
        assert (tmp_path / "counted-4").read_text() == "1\n2\n3\n4\n"
        listed = reshape(up, "slamls").stdout
        assert ("Completed" in listed, "2/2" in listed, "600 s" in listed) == (True, True, True)
        refused = reshape(up, "cancel", "slaml.default.other")
        assert (refused.returncode, "slaml.default.other" in refused.stderr) == (1, True)
