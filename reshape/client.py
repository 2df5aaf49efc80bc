"""The Python client of the coordinator's HTTP API; the command line is its first user.

    client = Client.find(Path.home() / ".reshape")
    job = client.submit({"command": ["python", "train.py"], "optional_num_gpus": [1, 2, 4]})

Imports the standard library only and nothing of the coordinator, so that it loads fast. Raises `CoordinatorRefused`
with the sentence of the coordinator where it refuses, `CoordinatorUnreachable` where it does not answer.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

TIMEOUT_S = 15.0  # the coordinator gives up after 10
LATELY_S = 86_400  # jobs that ended within a day are still of interest
SILENCE_S = 40.0  # an event stream sends something every 15
HEADER_OFFSET = "X-Reshape-Offset"

View = dict[str, Any]


class CoordinatorUnreachable(Exception):
    """Raised if no coordinator answers; the sentence says what to do."""


class CoordinatorRefused(Exception):
    """Raised if the coordinator answered with an error. `problems` has one sentence per fault."""

    def __init__(self, sentence: str, status: int, problems: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.status = status
        self.problems = tuple(problems)


class Client:
    """Calls one coordinator. Safe to use from several threads: every call has a connection of its own."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CoordinatorUnreachable(f"{url!r} is not the address of a coordinator, such as http://127.0.0.1:8080.")
        self.url = url.rstrip("/")
        self._token = token
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._secure = parts.scheme == "https"

    @classmethod
    def find(cls, state: Path) -> Client:
        """Return a client of the coordinator that `reshape up` started with this state folder, by its `up.json`."""
        file = state / "up.json"
        try:
            found = json.loads(file.read_text("utf-8"))
            token = found.get("token") or (state / found["token_file"]).read_text("utf-8").strip()
            return cls(found["url"], token)
        except FileNotFoundError:
            here = f"No coordinator is known in {state}; start one with `reshape up`"
            raise CoordinatorUnreachable(f"{here}, or name one elsewhere: RESHAPE_URL and RESHAPE_TOKEN.") from None
        except PermissionError as error:
            raise CoordinatorUnreachable(
                f"{error.filename} may not be read; run this as the user of `reshape up`."
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise CoordinatorUnreachable(f"{file} is damaged; run `reshape up` again.") from None

    def submit(self, doc: Mapping[str, Any], dry_run: bool = False) -> View:
        """Submit a job. `dry_run`: only check it; the view is what it would be."""
        return self._json("POST", f"/v1/jobs{'?dry_run=true' if dry_run else ''}", doc)

    def remove(self, job_id: str) -> View:
        """Remove a job that has ended from the lists."""
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/remove")

    def rerun(self, job_id: str) -> View:
        """Submit a job that has ended once more, under its name."""
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/rerun")

    def policy(self) -> View:
        """Return the systems that decide and their settings."""
        return self._json("GET", "/v1/policy")

    def jobs(self, include_ended: bool = False, within_s: int = 0) -> list[View]:
        """Return the open jobs, and with them all ended ones, or those that ended in the last `within_s` seconds."""
        query = "?ended=true" if include_ended else f"?ended_within={within_s}" if within_s else ""
        return self._rows(f"/v1/jobs{query}", "jobs")

    def job(self, job_id: str) -> View:
        return self._json("GET", f"/v1/jobs/{_part(job_id)}")

    def cancel(self, job_id: str) -> View:
        return self._json("DELETE", f"/v1/jobs/{_part(job_id)}")

    def reshape(self, job_id: str, gpus: int | None, force: bool = False) -> str:
        """Request a GPU count (None: the scheduler's) and return the decision's id. `force`: even if work is lost."""
        body = {"gpus": gpus, **({"force": True} if force else {})}
        return str(self._json("POST", f"/v1/jobs/{_part(job_id)}/reshape", body)["decision_id"])

    def suspend(self, job_id: str) -> str:
        """Let a job save, give its GPUs up and wait until it is resumed; return the decision's id."""
        return str(self._json("POST", f"/v1/jobs/{_part(job_id)}/suspend")["decision_id"])

    def resume(self, job_id: str) -> str:
        return str(self._json("POST", f"/v1/jobs/{_part(job_id)}/resume")["decision_id"])

    def drain(self, node: str) -> View:
        """Let a node take no new work and its jobs leave; return these, each with the reason if it stays."""
        return self._json("POST", f"/v1/nodes/{_part(node)}/drain")

    def undrain(self, node: str) -> View:
        return self._json("POST", f"/v1/nodes/{_part(node)}/undrain")

    def logs(self, job_id: str, offset: int = 0) -> tuple[bytes, int]:
        """Return a piece of the job's output from byte `offset`, empty at the end, and the next offset."""
        headers, text = self._call("GET", f"/v1/jobs/{_part(job_id)}/logs?offset={offset}")
        return text, int(headers[HEADER_OFFSET])

    def gpus(self) -> list[View]:
        return self._rows("/v1/gpus", "gpus")

    def nodes(self) -> list[View]:
        return self._rows("/v1/nodes", "nodes")

    def snapshot(self) -> View:
        """Return nodes, jobs on GPUs and settings as the scheduler sees them now: the input of `reshape what-if`."""
        return self._json("GET", "/v1/snapshot")

    def decisions(self, job_id: str | None = None, limit: int = 100) -> list[View]:
        """Return the newest `limit` decisions, newest first; those of `job_id` if it is given."""
        query = {"limit": str(limit)} | ({} if job_id is None else {"job": job_id})
        return self._rows(f"/v1/decisions?{urlencode(query)}", "decisions")

    def decision(self, decision_id: str) -> View:
        return self._json("GET", f"/v1/decisions/{_part(decision_id)}")

    def profiles(self, table: str) -> list[View]:
        return self._rows(f"/v1/profiles/{_part(table)}", "rows")

    def import_profiles(self, table: str, rows: Sequence[Mapping[str, Any]]) -> int:
        return int(self._json("POST", f"/v1/profiles/{_part(table)}", {"rows": list(rows)})["imported"])

    def login_link(self) -> str:
        """Return the address that lets one browser into the dashboard, once, within some minutes."""
        return self.url + str(self._json("POST", "/v1/logins")["path"])

    def health(self) -> View:
        """Return the coordinator's health; an unhealthy one is not refused: `ok` is False then."""
        try:
            return self._json("GET", "/healthz")
        except CoordinatorRefused as refusal:
            return {"ok": False, "sentence": str(refusal)}

    def events(self, after: int | None = None) -> Iterator[View]:
        """Yield events as they happen, those after id `after` first, until the coordinator goes away.

        To resume, call again with the last event's `_id`. Close the iterator to end it earlier.
        """
        query = "" if after is None else f"?after={after}"
        connection = self._connection(SILENCE_S)
        try:
            response = self._send(connection, "GET", f"/v1/events{query}", None)
            if response.status != 200:
                raise _refusal(response.status, response.read())
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def _rows(self, path: str, name: str) -> list[View]:
        rows: list[View] = self._json("GET", path)[name]
        return rows

    def _json(self, method: str, path: str, doc: Mapping[str, Any] | None = None) -> View:
        _, text = self._call(method, path, doc)
        answer: View = json.loads(text)
        return answer

    def _call(
        self, method: str, path: str, doc: Mapping[str, Any] | None = None
    ) -> tuple[http.client.HTTPMessage, bytes]:
        connection = self._connection(TIMEOUT_S)
        try:
            response = self._send(connection, method, path, doc)
            text = response.read()
        except (OSError, http.client.HTTPException):
            raise CoordinatorUnreachable(f"The coordinator at {self.url} broke off; is it still running?") from None
        finally:
            connection.close()
        if response.status >= 400:
            raise _refusal(response.status, text)
        return response.headers, text

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, doc: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token}"}
        body = None
        if doc is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(doc, default=str).encode()
        try:
            connection.connect()
        except OSError:
            hint = "start one with `reshape up`, or see whether the port-forward to a cluster's still runs"
            raise CoordinatorUnreachable(f"No coordinator answers at {self.url}; {hint}.") from None
        connection.request(method, self._prefix + path, body, headers)
        return connection.getresponse()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout)


def _part(text: str) -> str:
    """Quote one part of a path; a job id from the user may hold any character."""
    return quote(text, safe="")


def _refusal(status: int, text: bytes) -> CoordinatorRefused:
    try:
        error = json.loads(text)["error"]
        return CoordinatorRefused(str(error["sentence"]), status, [str(p) for p in error["problems"]])
    except (ValueError, KeyError, TypeError):
        pass
    try:  # /healthz keeps its own form
        return CoordinatorRefused(str(json.loads(text)["sentence"]), status)
    except (ValueError, KeyError, TypeError):
        return CoordinatorRefused(f"The coordinator answered {status} without saying why; its log may.", status)
