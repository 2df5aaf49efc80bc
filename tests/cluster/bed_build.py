"""What the test bed is made of: the programs it needs from the system, and those it builds from Go modules.

Called by bed.py before anything starts, and by CI as `python -m tests.cluster.bed_build`, beside the set-up of .venv/:
it needs no packages. What is built is kept in build/cluster/bin and built again only when its go.mod, go.sum or source
changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.bed_processes import BedError, run
from tests.cluster.images import write_pause

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "go"
BUILT = ROOT / "build" / "cluster"
BINARIES = BUILT / "bin"
IMAGES = BUILT / "images"
VERSION = "-X k8s.io/component-base/version.gitVersion=v"
CONTROL_PLANE = "RESHAPE_BED_KUBERNETES"  # variable: the minor version of API server, controllers and scheduler
BUILD_LIMIT_S = 1800.0

PACKAGES = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "/usr/lib/cni/ptp": "containernetworking-plugins",
    "iptables": "iptables", "conntrack": "conntrack", "ip": "iproute2", "nsenter": "util-linux", "sysctl": "procps",
    "mount": "mount", "buildah": "buildah", "debootstrap": "debootstrap", "prometheus": "prometheus",
    "prometheus-node-exporter": "prometheus-node-exporter",
}  # fmt: skip


class Missing(BedError):
    """This machine cannot carry the bed; the sentence says what it lacks."""


@dataclass(frozen=True)
class Module:
    """A Go module under go/ and the programs that it yields."""

    name: str
    programs: tuple[str, ...]
    what: tuple[str, ...] = ("tool",)
    flags: str = ""
    folder: str = ""
    env: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        return SOURCES / self.name

    @property
    def target(self) -> Path:
        return BINARIES / self.folder

    def digest(self) -> str:
        files = sorted(each for each in self.source.rglob("*") if each.suffix in (".mod", ".sum", ".go"))
        content = b"".join(file.read_bytes() for file in files)
        return hashlib.sha256(content + repr((self.what, self.flags, self.env)).encode()).hexdigest()

    def is_built(self) -> bool:
        stamp = BINARIES / f".{self.name}"
        built = all((self.target / program).exists() for program in self.programs)
        return built and stamp.exists() and stamp.read_text() == self.digest()

    def build(self) -> None:
        self.target.mkdir(parents=True, exist_ok=True)
        flags = f"-ldflags=-s -w {self.flags}".strip()
        run(
            ["go", "-C", str(self.source), "build", flags, "-o", f"{self.target}/", *self.what],
            within_s=BUILD_LIMIT_S, env=self.env,
        )  # fmt: skip
        (BINARIES / f".{self.name}").write_text(self.digest())


CONTROL_PROGRAMS = ("server", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
KUBERNETES = Module("kubernetes", (*CONTROL_PROGRAMS, "kubelet", "kube-proxy"), flags=f"{VERSION}1.34.3")
# Nodes stay at 1.34, three versions behind, as Kubernetes allows: newer kubelets need containerd 2, which Debian lacks.
CONTROL_PLANES = {
    "1.34": KUBERNETES,
    "1.37": Module("kubernetes-1.37", CONTROL_PROGRAMS, flags=f"{VERSION}1.37.2", folder="kubernetes-1.37"),
}
MODULES = (
    KUBERNETES,
    Module("volcano", ("scheduler", "controller-manager", "webhook-manager"), folder="volcano"),
    Module("coredns", ("coredns",), what=(".",)),
    Module("pause", ("pause",), what=(".",), env={"CGO_ENABLED": "0"}),
    Module("helm", ("helm",)),
)  # fmt: skip


def control_plane() -> Module:
    """Kubernetes in the version that the variable names; 1.34 without one."""
    named = os.environ.get(CONTROL_PLANE) or "1.34"
    if named not in CONTROL_PLANES:
        raise Missing(f"{CONTROL_PLANE} must be {' or '.join(CONTROL_PLANES)}, not {named}")
    return CONTROL_PLANES[named]


def modules() -> list[Module]:
    """All that this bed is built of."""
    newer = control_plane()
    return [*MODULES, *([newer] if newer not in MODULES else [])]


def ready() -> None:
    """Everything is there and built; Missing says what is not."""
    provide()
    for module in modules():
        if module.is_built():
            continue
        say(f"building {', '.join(module.programs)} ({module.name}) ...")
        began = time.monotonic()
        module.build()
        say(f"built {module.name} in {time.monotonic() - began:.0f} s")
    write_pause(BINARIES / "pause", IMAGES / "pause.tar")


def provide() -> None:
    """Debian's packages: installed in CI, asked for elsewhere."""
    if os.geteuid() != 0:
        raise Missing("the test bed needs root: it makes network namespaces and runs kubelets")
    packages = lacking()
    if packages and os.environ.get("CI"):
        say(f"installing {' '.join(packages)} ...")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], within_s=300, env=quiet)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], within_s=600, env=quiet)
        packages = lacking()
    if packages:
        raise Missing(f"the test bed needs Debian packages: apt-get install {' '.join(packages)}")
    if not all(module.is_built() for module in modules()) and shutil.which("go") is None:
        raise Missing("the test bed builds Kubernetes and Volcano: it needs Go 1.26 or newer on PATH (go.dev/dl)")


def lacking() -> list[str]:
    return sorted({package for program, package in PACKAGES.items() if not shutil.which(program)})


def volcano_source() -> Path:
    """The folder of Volcano's module, whose installer file holds its CRDs, roles and webhooks."""
    folder = ["go", "-C", str(SOURCES / "volcano"), "list", "-m", "-f", "{{.Dir}}", "volcano.sh/volcano"]
    if not (found := run(folder).strip()):
        run(["go", "-C", str(SOURCES / "volcano"), "mod", "download", "volcano.sh/volcano"], within_s=300)
        found = run(folder).strip()
    return Path(found)


def say(sentence: str) -> None:
    print(f"test bed: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    ready()
