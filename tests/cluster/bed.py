"""A real Kubernetes cluster with Volcano on this machine: `python -m tests.cluster.bed up|down|status|images`.

Two kubelets on containerd in network namespaces, RBAC enforced, a CA, DNS, Volcano's scheduler, controllers and
webhooks, and no route out. Used by conftest.py and by `make cluster`. Everything it starts it can end: after a crash,
too, `down` and the next `up` remove what is left.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from tests.cluster import bed_build, bed_leftovers, bed_network, bed_nodes, bed_trouble, built_images
from tests.cluster.bed_build import BINARIES, BUILT, IMAGES, control_plane, say
from tests.cluster.bed_control import API, Control
from tests.cluster.bed_kubectl import Cluster, Object, condition, phase, until
from tests.cluster.bed_leftovers import OWNER
from tests.cluster.bed_network import CONTROL, NODES
from tests.cluster.bed_nodes import Node
from tests.cluster.bed_pki import Authority, Tokens
from tests.cluster.bed_processes import BedError, Processes
from tests.cluster.bed_volcano import Volcano
from tests.cluster.images import PAUSE

RUN = BUILT / "run"
DATA = ("nodes", "etcd", "pki", "volcano")
IMAGE_KINDS = ("base", "reshape", "nx")
PARTS = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns", "kube-proxy-control",
    "volcano-scheduler", "volcano-controllers", "volcano-admission",
    *(f"{part}-{node}" for node in NODES for part in bed_nodes.PARTS),
)  # fmt: skip


class Bed:
    """The bed in one folder, running or not."""

    def __init__(self, folder: Path = RUN) -> None:
        self.folder = folder.resolve()
        self.processes = Processes(self.folder)
        self.nodes = {name: Node(name, self.folder, BINARIES, self.processes) for name in NODES}

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "pki" / "admin.kubeconfig"

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.kubeconfig, BINARIES)

    @cached_property
    def authority(self) -> Authority:
        return Authority(self.folder / "pki")

    @cached_property
    def tokens(self) -> Tokens:
        return Tokens(self.folder / "pki", API, self.authority.certificate)

    @cached_property
    def control(self) -> Control:
        return Control(self.folder, control_plane().target, self.authority, self.tokens, self.processes)

    @cached_property
    def volcano(self) -> Volcano:
        source = bed_build.volcano_source()
        return Volcano(self.folder, BINARIES, source, self.authority, self.tokens, self.processes)

    def is_up(self) -> bool:
        return not self.dead()

    def dead(self) -> list[str]:
        """Parts that do not run."""
        return [part for part in PARTS if self.processes.pid(part) is None]

    def up(self) -> None:
        """Build what is not built, remove what an earlier run left, start everything; all of it or nothing.

        What does not start is started once more, as an init system would, and what it said is printed.
        """
        with one_at_a_time():
            left = self._left_by_others()
            if self.is_up():
                return say(f"is up already: KUBECONFIG={self.kubeconfig}")
            bed_build.ready()
            self._remove_all(left)
            try:
                self._start_or_remove()
            except BedError as error:
                say(f"has not come up, and is started once more: {error}")
                self._start_or_remove()
        return None

    def _start_or_remove(self) -> None:
        try:
            self._start()
        except BaseException:
            with undisturbed():
                self._remove()
            raise

    def down(self) -> None:
        with one_at_a_time():
            left = self._left_by_others()
            with undisturbed():
                self._remove_all(left)

    def _left_by_others(self) -> list[Path]:
        return bed_leftovers.dead(self.folder, Path("/proc/self/mounts").read_text())

    def _remove_all(self, others: Iterable[Path]) -> None:
        """What an earlier run of this bed left, and what beds of other folders did that were killed."""
        for folder in others:
            say(f"removes what is left of a bed that was killed, in {folder}")
            Bed(folder)._remove()
        self._remove()

    def _start(self) -> None:
        began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._put_logs_aside()
        OWNER.write_text(str(self.folder))
        self._prepare()
        bed_network.set_up()
        with ThreadPoolExecutor() as beside:
            runtimes = [beside.submit(self._start_runtime, node) for node in self.nodes.values()]
            cluster = self.control.start()
            for runtime in runtimes:
                runtime.result()
        for node in self.nodes.values():
            node.start_kubelet()
            node.start_proxy()
        self.control.start_dns(cluster, self.folder / "pki" / "coredns.kubeconfig")
        self.volcano.start(cluster)
        self.wait_ready(within_s=20)
        self._proxy_control()
        self._try_pods()
        for part in PARTS:
            self.processes.check(part)
        say(f"is up after {time.monotonic() - began:.1f} s: export KUBECONFIG={self.kubeconfig}")

    def _put_logs_aside(self) -> None:
        """What went wrong in an earlier run is not to be taken for what goes wrong in this one."""
        logs, before = self.folder / "logs", self.folder / "logs.before"
        if logs.exists():
            shutil.rmtree(before, ignore_errors=True)
            logs.rename(before)

    def _prepare(self) -> None:
        """Every token and certificate, before the API server reads them."""
        for node in self.nodes.values():
            node.prepare(self.authority, self.tokens)
        self.tokens.service_account("coredns", "kube-system", "coredns")
        self.tokens.kubeconfig("kube-proxy-control", "system:kube-proxy")
        self.volcano.prepare()

    def _start_runtime(self, node: Node) -> None:
        node.start_runtime()
        node.import_image(IMAGES / "pause.tar")

    def _proxy_control(self) -> None:
        """ClusterIPs for Volcano's programs, and through them for the host. It needs some node's name: any will do."""
        config = self.folder / "kube-proxy-control.json"
        kubeconfig = self.folder / "pki" / "kube-proxy-control.kubeconfig"
        bed_nodes.write_proxy_config(config, next(iter(NODES)), kubeconfig, bed_network.CONTROL_IP)
        self.start_beside("kube-proxy-control", [str(BINARIES / "kube-proxy"), f"--config={config}"])

    def _try_pods(self) -> None:
        """One pod on each node, to its end: a node can be Ready and start none, for want of room on its disk."""
        names = {node: f"bed-trial-{node}" for node in self.nodes}
        try:
            for node, name in names.items():
                until("the first pod is taken", lambda node=node, name=name: self._apply_trial(node, name), 20)
            for name in names.values():
                ended = self.cluster.wait("pod", name, lambda pod: phase("Succeeded")(pod) or phase("Failed")(pod))
                if phase("Failed")(ended):
                    raise BedError(f"pod {name} does not run: {ended['status'].get('message')}")
        except BedError as error:
            raise BedError(f"{error}\n{self.trouble()}") from None
        for name in names.values():
            self.cluster.delete("pod", name, "default", "--wait=false", "--grace-period=0", "--force")

    def _apply_trial(self, node: str, name: str) -> bool:
        container = {"name": "ends", "image": PAUSE, "imagePullPolicy": "IfNotPresent", "args": ["sleep", "0"]}
        spec = {"restartPolicy": "Never", "nodeName": node, "containers": [container]}
        about = {"name": name, "namespace": "default"}
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
        return True

    def trouble(self) -> str:
        """Why pods do not run, as far as nodes, events and logs tell."""
        if not self.kubeconfig.exists():
            return "the test bed is not up any more"
        logs = {name: self.processes.log(name) for name in PARTS if name.startswith(("kubelet", "containerd"))}
        return bed_trouble.described(self.cluster, self.folder, logs)

    def _remove(self) -> None:
        bed_nodes.tear_down(self.folder, self.processes)
        self.processes.stop([name for name in self.processes.records() if name != "etcd"])
        self.processes.stop(["etcd"])
        bed_network.tear_down()
        self._delete_data()
        OWNER.unlink(missing_ok=True)
        for cached in ("authority", "tokens", "control", "volcano", "cluster"):
            self.__dict__.pop(cached, None)

    def _delete_data(self) -> None:
        """Put away at once what the bed wrote, and delete it in the background.

        Some hundred thousand files take minutes where the disk is told of each that it is free.
        """
        if not self.folder.exists():
            return
        doomed = Path(tempfile.mkdtemp(prefix="removed-", dir=self.folder))
        for name in DATA:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / name).rename(doomed / name)
        in_background = "setsid rm -rf removed-* >/dev/null 2>&1 &"  # also what an interrupted one has left
        subprocess.run(["sh", "-c", in_background], cwd=self.folder, check=True)

    def start_beside(self, name: str, command: list[str], env: dict[str, str] | None = None) -> str:
        """Run a program of a test's own next to the API server; the answer is its address in the bed."""
        self.processes.start(name, bed_network.inside(CONTROL, command), env)
        return bed_network.CONTROL_IP

    def provide_images(self, kinds: Iterable[str] = IMAGE_KINDS) -> None:
        """Build what has changed of our own images, and give the nodes those that they have not got."""
        for kind in kinds:
            self.provide(built_images.archive(kind))

    def provide(self, archive: Path, nodes: Iterable[str] = tuple(NODES)) -> None:
        """Give these nodes, all at once, an image that they have not got."""
        made = str(archive.stat().st_mtime_ns)
        stamps = {node: self.nodes[node].folder / f"imported-{archive.stem}" for node in nodes}
        missing = [node for node, stamp in stamps.items() if not stamp.exists() or stamp.read_text() != made]
        with ThreadPoolExecutor() as beside:
            for node in beside.map(lambda node: self._import(archive, node), missing):
                stamps[node].write_text(made)

    def _import(self, archive: Path, node: str) -> str:
        self.nodes[node].import_image(archive)
        return node

    def kill_kubelet(self, node: str) -> None:
        self.nodes[node].kill_kubelet()

    def start_kubelet(self, node: str) -> None:
        """Start it again; when this returns it answers the API server."""
        self.nodes[node].start_kubelet()
        health = f"--raw=/api/v1/nodes/{node}/proxy/healthz"
        until(f"the kubelet of {node}", lambda: self.cluster.kubectl("get", health) == "ok")

    def cut_link(self, node: str) -> None:
        bed_network.cut(node)

    def mend(self, node: str) -> None:
        bed_network.mend(node)

    def patch_gpus(self, node: str, count: int) -> None:
        bed_nodes.patch_gpus(self.cluster, node, count)

    def start_gpu_plugin(self, node: str, gpu_ids: list[str]) -> None:
        """Give a node these GPUs by a fake of NVIDIA's device plugin; returns once they are allocatable."""
        self.nodes[node].start_gpu_plugin(gpu_ids)
        wanted = str(len(gpu_ids))
        self.cluster.wait("node", node, lambda found: found["status"]["allocatable"].get("nvidia.com/gpu") == wanted)

    def stop_gpu_plugin(self, node: str) -> None:
        self.nodes[node].stop_gpu_plugin()

    def wait_ready(self, within_s: float = 60.0) -> None:
        """Both nodes are Ready: after a test that broke one."""
        for node in self.nodes.values():
            try:
                self.cluster.wait("node", node.name, _is_ready, within_s=within_s, check=node.check)
            except BedError as error:
                raise BedError(f"{error}\n{node.describe(self.cluster)}") from None


def _is_ready(node: Object) -> bool:
    return condition(node, "Ready")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two that bring the bed up or down wait for one another."""
    with OWNER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C waits until what was begun is removed."""
    asked = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, asked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, asked)


def status(bed: Bed) -> int:
    dead = bed.dead()
    for part in PARTS:
        print(f"{part:28} {'-' if part in dead else bed.processes.pid(part)}")
    if not dead:
        print(f"up: export KUBECONFIG={bed.kubeconfig}")
    return 1 if dead else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.bed", description=__doc__)
    parser.add_argument("do", choices=["up", "down", "status", "images", "import"])
    parser.add_argument("archive", nargs="?", type=Path, help="import: a docker-archive, into both nodes")
    parser.add_argument("--folder", type=Path, default=RUN)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bed = Bed(asked.folder)
    try:
        if asked.do == "status":
            return status(bed)
        if asked.do == "import":
            bed.provide(asked.archive)
        else:
            {"up": bed.up, "down": bed.down, "images": bed.provide_images}[asked.do]()
    except BedError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped; nothing is left running")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
