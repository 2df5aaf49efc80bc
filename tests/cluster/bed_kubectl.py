"""What tests ask of the cluster: apply, read, wait, logs, exec; all but reads by kubectl. On the bed and any cluster.

Objects are plain dicts. Called by the bed itself and by every cluster test.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tests.cluster.bed_processes import BedError, run
from tests.cluster.bed_reader import reader
from tests.patience import patient

Object = dict[str, Any]
T = TypeVar("T")


def until(
    what: str, look: Callable[[], T | None], within_s: float = 120.0, check: Callable[[], None] = lambda: None
) -> T:
    """What `look` answers once that is true; BedError after `patient(within_s)`.

    An error in it is a no for now, as is a field or an object that is not there yet: controllers write a status later.
    """
    deadline = time.monotonic() + patient(within_s)
    last = ""
    while True:
        try:
            if found := look():
                return found
        except (BedError, LookupError, TypeError) as error:
            last = f" ({error!r})"
        check()
        if time.monotonic() > deadline:
            raise BedError(f"{what}: not so within {patient(within_s):g} s{last}")
        time.sleep(0.1)


class Cluster:
    """One cluster, reached with one kubeconfig."""

    def __init__(self, kubeconfig: Path, binaries: Path | None = None) -> None:
        self.kubeconfig = kubeconfig
        self._program = shutil.which("kubectl") or str((binaries or Path()) / "kubectl")
        self._reader = reader(kubeconfig, lambda: self.kubectl("api-resources", "--no-headers"))

    def kubectl(self, *arguments: str, text: str | None = None, within_s: float = 120.0) -> str:
        command = [self._program, f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(command, text=text, within_s=within_s)

    def apply(self, what: Object | Iterable[Object] | str | Path, *options: str) -> None:
        """Server-side apply of dicts, YAML text, a file, or a folder with a kustomization."""
        if isinstance(what, Path):
            flag = "-k" if what.is_dir() else "-f"
            self.kubectl("apply", "--server-side", "--force-conflicts", flag, str(what), *options)
            return
        if not isinstance(what, str):
            what = yaml.safe_dump_all([what] if isinstance(what, dict) else list(what))
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", *options, text=what)

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """The object, or None when there is none."""
        if self._reader:
            return self._reader.get(kind, name, namespace)
        found = self.kubectl("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "json")
        return json.loads(found) if found.strip() else None

    def delete(self, kind: str, name: str, namespace: str = "default", *options: str) -> None:
        self.kubectl("delete", kind, name, "-n", namespace, "--ignore-not-found", *options, within_s=120)

    def patch(self, kind: str, name: str, change: Object, namespace: str = "default", *options: str) -> None:
        self.kubectl("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(change), *options)

    def wait(
        self, kind: str, name: str, so: Callable[[Object], Any], namespace: str = "default", within_s: float = 120.0,
        check: Callable[[], None] = lambda: None,
    ) -> Object:  # fmt: skip
        """The object once `so` holds for it."""

        def look() -> Object | None:
            found = self.get(kind, name, namespace)
            return found if found is not None and so(found) else None

        return until(f"{kind} {namespace}/{name}", look, within_s, check)

    def wait_gone(self, kind: str, name: str, namespace: str = "default", within_s: float = 120.0) -> None:
        until(f"{kind} {namespace}/{name} gone", lambda: self.get(kind, name, namespace) is None, within_s)

    def logs(self, pod: str, namespace: str = "default", container: str | None = None, *options: str) -> str:
        return self.kubectl("logs", pod, "-n", namespace, *(["-c", container] if container else []), *options)

    def exec(self, pod: str, *command: str, namespace: str = "default", container: str | None = None) -> str:
        return self.kubectl("exec", pod, "-n", namespace, *(["-c", container] if container else []), "--", *command)

    def events(self, name: str, namespace: str = "default") -> list[str]:
        """`Reason: message` of each event of an object, oldest first."""
        found = self.kubectl(
            "get", "events", "-n", namespace, f"--field-selector=involvedObject.name={name}", "-o", "json"
        )
        items = sorted(json.loads(found)["items"], key=lambda event: event["metadata"]["creationTimestamp"])
        return [f"{event.get('reason')}: {event.get('message')}" for event in items]

    def may(self, account: str, verb: str, resource: str, namespace: str = "default") -> bool:
        """Whether a service account (`namespace:name`) may do that, by the API server's own judgement."""
        spec = {
            "user": f"system:serviceaccount:{account}",
            "groups": [
                "system:serviceaccounts", f"system:serviceaccounts:{account.split(':')[0]}", "system:authenticated",
            ],
            "resourceAttributes": {
                "namespace": namespace, "verb": verb, "resource": resource.split(".")[0],
                "group": ".".join(resource.split(".")[1:]),
            },
        }  # fmt: skip
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = self.kubectl("create", "-f", "-", "-o", "json", text=json.dumps(review))
        return bool(json.loads(answer)["status"]["allowed"])

    def list(self, kind: str, namespace: str | None = "default", selector: str = "") -> list[Object]:
        if self._reader:
            return self._reader.list(kind, namespace, selector)
        where = ["-A"] if namespace is None else ["-n", namespace]
        return list(json.loads(self.kubectl("get", kind, *where, "-l", selector, "-o", "json"))["items"])


def condition(object_: Object, kind: str) -> bool:
    """Whether a condition of the object is True."""
    found = object_.get("status", {}).get("conditions") or []
    return any(each.get("type") == kind and each.get("status") == "True" for each in found)


def phase(name: str) -> Callable[[Object], bool]:
    """For `wait`: the pod is in that phase."""
    return lambda object_: object_.get("status", {}).get("phase") == name
