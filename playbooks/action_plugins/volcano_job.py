"""Applies or deletes a Volcano Job or batch Job from Ansible's own process, by the launcher's client of the
Kubernetes API.

`apply: FILE` applies the object in a JSON file on the server's side; `delete: NAME` with `namespace` and `kind` (as
`launcher.cluster.api` names it) deletes one, its pods first. Both may be repeated. Fails with the API server's own
message. A module would be started in a Python of its own, which takes five times as long. Called by launch.yml and
remove.yml.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from coordinator.errors import ReshapeError
from launcher.cluster.api import KubernetesApi


class ActionModule(ActionBase):
    """Named as Ansible wants it."""

    TRANSFERS_FILES = False

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        try:
            cluster = KubernetesApi()
            if "apply" in given:
                cluster.apply(json.loads(Path(given["apply"]).read_text(encoding="utf-8")))
                return {**result, "changed": True}
            deleted = cluster.delete(given["kind"], given["delete"], given["namespace"], foreground=True)
            return {**result, "changed": deleted}
        except ReshapeError as error:
            return {**result, "failed": True, "msg": str(error)}
