"""The protocols by which the HTTP API calls the coordinator; `coordinator.api.api_service.ApiService` implements both.

All methods are synchronous and may be called from any thread; the handlers call them in threads of their own.
They raise only `coordinator.errors`: `Rejected` (its sentence and status are shown), `Conflict` (409), `Transient`
(503), `Unauthorized` (401). Everything returned can be written as JSON as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from coordinator.dashboard.pages import PageSource

View = dict[str, Any]


class UserOperations(PageSource, Protocol):
    """Operations that users ask for; those that pages read are in `PageSource`."""

    def submit(self, doc: View, dry_run: bool = False) -> View:
        """Store a job; returns its view. A bad document is not stored: `Rejected` with `problems`.

        `dry_run`: only check it.
        """
        ...

    def rerun(self, job_id: str) -> View:
        """Submit a job that has ended once more, under its name; returns its view."""
        ...

    def apply_slaml(self, item: View, dry_run: bool = False) -> View:
        """Store a Slaml, or new values of one that has not ended; returns its view. `dry_run`: only check it."""
        ...

    def slamls(self) -> list[View]:
        """All Slamls, the oldest first."""
        ...

    def delete_slaml(self, slaml_id: str) -> View:
        """Delete the Slaml `slaml.NAMESPACE.NAME`, and cancel its jobs; returns its view."""
        ...

    def policy(self) -> View:
        """The systems that decide, how a reshape is done, and the settings."""
        ...

    def shares(self) -> View:
        """Queues and users: what each may have, has and has used lately; and what is wrong with `shares.yaml`."""
        ...

    def set_shares(self, text: str) -> View:
        """Replace `shares.yaml`; answered as `shares` is. `Rejected` for one that cannot be kept."""
        ...

    def usage(self, since: float) -> list[View]:
        """GPU-hours by queue, user and GPU type since the hour of this time (seconds since 1970)."""
        ...

    def jobs(self, include_ended: bool, within_s: float = 0.0) -> list[View]:
        """Oldest first. With all that have ended, or with those that did in the last `within_s` seconds."""
        ...

    def snapshot(self) -> View:
        """Nodes, jobs on GPUs and settings as the scheduler sees them now, to simulate what would happen."""
        ...

    def journal(self, within_s: float = 0.0) -> View:
        """Jobs as they were submitted, open ones and those that ended in the last `within_s` seconds, and what came.

        0: all that are kept. To simulate them under another policy.
        """
        ...

    def what_if(self, fields: Mapping[str, str]) -> View:
        """Simulate with the changes of a form: `head` and `rows` of a table, `said`, `times`. Takes seconds."""
        ...

    def cancel(self, job_id: str) -> View:
        """Ask for the job to be stopped; returns at once with its view."""
        ...

    def request(self, job_id: str, gpus: int | None, signal: str | None, force: bool = False) -> View:
        """Take an operator's request; returns `{"decision_id": …}`. Without `gpus` and `signal` it is withdrawn.

        `force`: even if work is lost.
        """
        ...

    def logs(self, job_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        """Return at most `limit` bytes of the job's output from byte `offset`, and the offset after them."""
        ...

    def decision(self, decision_id: str) -> View: ...

    def events_after(self, seq: int, limit: int) -> list[View]:
        """Oldest first; each has an integer `_id` greater than `seq` and a `type`."""
        ...

    def last_event(self) -> int: ...

    def remove(self, job_id: str) -> View:
        """Remove a job that has ended; returns its `job_id`. 409 if it has not, or another one depends on it."""
        ...

    def suspend(self, job_id: str) -> View:
        """Let a job save, give its GPUs up and wait; returns `{"decision_id": …}`. 409 if that would lose work."""
        ...

    def resume(self, job_id: str) -> View:
        """Let a suspended or held job start again; returns `{"decision_id": …}`. 409 if it is neither."""
        ...

    def drain(self, node: str, drained: bool) -> View:
        """Close a node to new work and let its jobs leave, or open it again; its jobs, and why some stay."""
        ...

    def on_event(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, whenever events were appended; returns the function that ends this."""
        ...

    def profiles(self, table: str) -> list[View]:
        """`table` is one of `coordinator.ports.PROFILE_TABLES`."""
        ...

    def import_profiles(self, table: str, rows: list[View]) -> int:
        """Store all rows or none and return their number. `Rejected` with one problem per bad row."""
        ...

    def health(self) -> View:
        """At least `ok` and a `sentence`. Never raises."""
        ...


class CoordinatorApi(UserOperations, Protocol):
    """All operations, with those that no user asks for: of sidecars, node agents, Volcano and monitoring."""

    def heartbeat(self, job_id: str, launch: int, raw: bytes, signature: str) -> tuple[bytes, str]:
        """The reply's body and its signature (`sidecar/protocol.py`)."""
        ...

    def knows(self, job_id: str) -> bool:
        """True if `heartbeat` of this job needs no store, so that it may be called on the server's own thread."""
        ...

    def take_request(self, job_id: str, launch: int, raw: bytes, signature: str) -> tuple[bytes, str]:
        """A request that an operator made of a sidecar; answered like a heartbeat."""
        ...

    def node_reported(self, name: str, path: str, raw: bytes, signature: str) -> tuple[bytes, str]:
        """A node agent's inventory, signed over the address `path`; answered like a heartbeat."""
        ...

    def acts(self) -> bool:
        """True if this is the coordinator that acts. Never raises; from memory, like `extend`."""
        ...

    def extend(self, verb: str, raw: bytes) -> bytes:
        """The answer to Volcano's scheduler; from memory, so that it may be called on the server's own thread."""
        ...

    def metrics(self) -> bytes:
        """Prometheus text."""
        ...
