"""Helm as a user has it: the program that was built with the bed, and what it says. Not a test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.cluster.bed_build import MODULES, ROOT

CHART = ROOT / "manifests"


class HelmRefused(Exception):
    """Helm ended with an error; its last words."""


def program() -> Path:
    """The program that was built with the bed; built now if it is not there."""
    (module,) = [each for each in MODULES if each.name == "helm"]
    if not module.is_built():
        module.build()
    return module.target / "helm"


def helm(*arguments: str, kubeconfig: Path | None = None, within_s: float = 120.0) -> str:
    """Run it; what it printed."""
    home = ROOT / "build" / "cluster" / "helm"
    environment = {
        **os.environ,
        "HELM_CACHE_HOME": str(home),
        "HELM_CONFIG_HOME": str(home),
        "HELM_DATA_HOME": str(home),
        "KUBECONFIG": str(kubeconfig or os.devnull),
    }
    command = [str(program()), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=within_s)
    if done.returncode:
        raise HelmRefused(done.stderr.strip())
    return done.stdout
