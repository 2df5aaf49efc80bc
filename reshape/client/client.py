"""The client whose calls return when the coordinator has answered.

    client = Client()  # the `reshape up` of this user on this machine, or what RESHAPE_URL names
    job = client.submit("train.py", gpus=[1, 2, 4])
    job.wait()

Raises `CoordinatorRefused` with the sentence of the coordinator where it refuses, `CoordinatorUnreachable` where it
does not answer. `reshape/client/async_client.py` has the same calls.
"""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from reshape.client import command, job_output
from reshape.client.cluster_token import cluster_token
from reshape.client.connection import (
    UNIX,
    Connection,
    CoordinatorRefused,
    CoordinatorUnreachable,
    EventStream,
    View,
    users_socket,
)
from reshape.client.job import JobList, SubmittedJob
from reshape.client.job_plot import JobPlot
from reshape.client.progress_bar import progress_bar, waiting_given_up

if TYPE_CHECKING:
    from coordinator.forecasts.what_if import WhatIf

LATELY_S = 86_400  # jobs that ended within a day are still of interest
NAMES_TRIED = 20  # of a job that is numbered after its script
CONFLICT = 409  # the coordinator answers: the name is taken
HEADER_OFFSET = "X-Reshape-Offset"
STATE = "~/.reshape"
ANSWERS_S = 1.0  # in which a coordinator of this machine accepts a connection
ALONE = (
    "what_if simulates on this machine, with the scheduler itself: install volcano-reshape, not reshape-client alone."
)


class Client:
    """Calls one coordinator. Safe to use from several threads: every call has a connection of its own."""

    def __init__(self, url: str | None = None, token: str = "") -> None:
        """Without `url`: RESHAPE_URL and RESHAPE_TOKEN, else what `find` finds in RESHAPE_STATE or ~/.reshape.

        Without RESHAPE_TOKEN the token of the pod or of the kubeconfig is sent, by https, to this machine or to a
        Service.
        """
        given = os.environ.get("RESHAPE_URL", "") if url is None else url
        self.here = not given or given.startswith(UNIX)  # jobs run on this machine
        if url is None:
            url, token = _known()
        self._connection = Connection(url, token)
        self.url = self._connection.url
        # The environment in which `Client()` and the command `reshape` call the same coordinator.
        self.variables = {"RESHAPE_URL": self.url, "RESHAPE_TOKEN": token}

    @classmethod
    def find(cls, state: Path) -> Client:
        """Return a client of the coordinator that `reshape up` started with this state folder, by its `up.json`."""
        client = cls(*_written(state))
        client.here = True
        return client

    def submit(
        self,
        /,
        job: Mapping[str, Any] | str | os.PathLike[str] | Sequence[object],
        dry_run: bool = False,
        *,
        gpus: int | Sequence[int] | None = None,
        name: str | None = None,
        code: str | Path | None = None,
        env: Mapping[str, object] | None = None,
        **fields: Any,
    ) -> SubmittedJob:
        """Submit a script, the words of a command or a job document, and return the job.

        A script such as "train.py" and words run as `reshape submit` runs them: in the folder `code` (the current one),
        with this interpreter and these variables (`env` adds some), on `gpus`: a count, or those it can run on such as
        [1, 2, 4]; 0 is a CPU job. `fields` are options of `reshape submit` (deadline="2h", after=["train-1"]) or fields
        of a job document (docs/reference/job.md). A document is sent as it is, but for a relative `code`; on one
        machine it may be a Slaml (docs/deadlines.md). `dry_run`: only check it; the job is what it would be.

        Raises `NotRunnable` if there is no such script, program, folder or GPU count, `CoordinatorRefused` if a field
        is wrong, `CoordinatorUnreachable` if no coordinator answers. Nothing is submitted then.
        """
        if isinstance(job, Mapping):
            if fields or name or env or code or gpus is not None:
                raise TypeError("A job document holds all that is said of a job: write the other fields into it.")
            doc = dict(job)
            if self.here:
                command.names_its_folder(doc)
            if self.here and isinstance(doc.get("code"), str):
                doc["code"] = str(Path(doc["code"]).expanduser().absolute())
            return self._submit(doc, dry_run)
        doc = self._document(self._words(job), gpus, name, code, env, fields)
        self._fits_some_node(doc)
        return self._submit_named(doc, dry_run)

    def _document(
        self,
        words: Sequence[str],
        gpus: int | Sequence[int] | None,
        name: str | None,
        code: str | Path | None,
        env: Mapping[str, object] | None,
        fields: Mapping[str, Any],
    ) -> dict[str, Any]:
        if wrong := sorted(command.GIVEN_OTHERWISE.keys() & fields):
            raise TypeError(f"submit does not take {wrong[0]}: {command.GIVEN_OTHERWISE[wrong[0]]}.")
        named = {"name": name, "code": None if code is None else str(code), "env": command.variables_as_texts(env)}
        given = {option: value for option, value in {**fields, **named}.items() if value is not None}
        others = {field: value for field, value in given.items() if field not in command.FIELDS}
        return others | command.document(words, command.gpu_counts(gpus), given, self.here)

    def _fits_some_node(self, doc: Mapping[str, Any]) -> None:
        if self.here:
            command.fits_some_node(self.nodes(), doc["optional_num_gpus"], "gpus=")

    def _submit_named(self, doc: Mapping[str, Any], dry_run: bool) -> SubmittedJob:
        if not self.here and "image" not in doc:
            warnings.warn(command.NOT_SENT, stacklevel=3)
        try:
            return self._submit(doc, dry_run) if dry_run else self.submit_as(doc, command.name(doc["command"]))
        except CoordinatorRefused as refusal:
            if meant := command.keyword_meant(doc, refusal.problems):
                raise CoordinatorRefused(f"{refusal} {meant}", refusal.status, refusal.problems) from None
            raise

    def submit_as(self, doc: Mapping[str, Any], stem: str) -> SubmittedJob:
        """Submit under the document's own id, else under the first free one after `stem`: `train-1`, `train-2`."""
        if "job_id" in doc:
            return self._submit(doc)
        numbered = re.compile(rf"{re.escape(stem)}-(\d{{1,9}})")
        used = [numbered.fullmatch(str(job["job_id"])) for job in self.jobs(within_s=LATELY_S)]
        first = max([int(match[1]) for match in used if match], default=0) + 1
        for number in range(first, first + NAMES_TRIED):
            try:
                return self._submit({**doc, "job_id": f"{stem}-{number}"})
            except CoordinatorRefused as refusal:
                if refusal.status != CONFLICT:
                    raise
        return self._submit(doc)  # the coordinator finds a name

    def map(
        self,
        /,
        job: str | os.PathLike[str] | Sequence[object],
        arguments: Iterable[Sequence[object] | Mapping[str, object]],
        dry_run: bool = False,
        *,
        gpus: int | Sequence[int] | None = None,
        name: str | None = None,
        code: str | Path | None = None,
        env: Mapping[str, object] | None = None,
        **fields: Any,
    ) -> JobList:
        """Submit a command once for each of `arguments`, as for a sweep, and return the jobs in that order.

        Each is a dictionary, {"lr": 0.1} for `--lr 0.1`, or a list of further words. All else is as of `submit`; with
        `name` the jobs are `name-1`, `name-2`. Nothing is submitted if one of them cannot run. If the coordinator
        refuses one, or goes away, the exception names those that were submitted before.
        """
        words = self._words(job)
        if isinstance(job, str) and words[0] == "sh":
            raise TypeError("Give a script or the words of a command: a text for a shell takes no further words.")
        all_words = [[*words, *command.further_words(more)] for more in arguments]
        docs = [
            self._document(each, gpus, None if name is None else f"{name}-{number}", code, env, fields)
            for number, each in enumerate(all_words, 1)
        ]
        if docs:  # they differ in their words only
            self._fits_some_node(docs[0])
        jobs = JobList()
        for doc in docs:
            try:
                jobs.append(self._submit_named(doc, dry_run))
            except (CoordinatorRefused, CoordinatorUnreachable) as error:
                if jobs and not dry_run:
                    error.add_note(f"Submitted before that, and not cancelled: {', '.join(j.job_id for j in jobs)}.")
                raise
        return jobs

    def _words(self, job: str | os.PathLike[str] | Sequence[object]) -> list[str]:
        """Return the words of a command; elsewhere the image has a Python of its own."""
        return command.words_of(job) if self.here else command.words_of(job, "python3")

    def _submit(self, doc: Mapping[str, Any], dry_run: bool = False) -> SubmittedJob:
        table = "slamls" if doc.get("kind") == "Slaml" else "jobs"
        path = f"/v1/{table}{'?dry_run=true' if dry_run else ''}"
        try:
            return SubmittedJob(self, self._ask("POST", path, doc))
        except CoordinatorRefused as refusal:
            if named := command.webhook_named(doc, refusal.problems or (str(refusal),)):
                raise CoordinatorRefused(f"{refusal} {named}", refusal.status, refusal.problems) from None
            raise

    def wait(self, job_id: str, timeout_s: float | None = None, progress: bool = True) -> SubmittedJob:
        """Wait until a job has ended, or was not accepted, and return it as it ended.

        A job that failed raises nothing: look at the `state` of what is returned. `progress`: show in a terminal or a
        notebook how far it is, and why it failed; elsewhere nothing is written. Ctrl-C (`KeyboardInterrupt`) and
        `TimeoutError`, after `timeout_s` seconds, end the waiting only: the job goes on.
        """
        view: View = {}
        try:
            with progress_bar(progress) as show:
                for view in job_output.patiently(job_output.until_ended(self, job_id, timeout_s)):
                    show(view)
        except KeyboardInterrupt:
            if progress:
                waiting_given_up(job_id)
            raise
        return SubmittedJob(self, view)

    def follow(self, job_id: str) -> Iterator[str]:
        """Yield the lines that a job's training prints, until the job ends."""
        return job_output.patiently(job_output.lines(job_output.pieces(self, job_id, True)))

    def output(self, job_id: str) -> str:
        """Return what a job's training has printed so far; what is no UTF-8 is shown as a question mark."""
        pieces = job_output.patiently(job_output.pieces(self, job_id, False))
        return b"".join(pieces).decode("utf-8", "replace")

    def explain(self, job_id: str) -> str:
        """Return why a job has the GPUs it has, or waits: what was decided about it, oldest first, and the present."""
        found = self.decisions(job_id)[::-1]
        now = self.job(job_id)["message"]
        last = [f"Now: {now}"] if now and now not in [decision["sentence"] for decision in found] else []
        return "\n".join([*map(_sentence, found), *last])

    def what_if(
        self,
        *,
        submit: Iterable[Mapping[str, Any]] = (),
        gpus: Mapping[str, int] | None = None,
        drain: Iterable[str] = (),
        policy: str | None = None,
        queue_order: str | None = None,
        deadlines: Mapping[str, str | float] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> WhatIf:
        """Predict who starts and ends when, as things stand and with changes; touches nothing.

        `submit`: job documents; `gpus`: more or fewer by type, such as {"V100": 2}; `drain`: nodes; `deadlines`: by
        job, such as "30m"; `weights`: by queue or user. Simulates in this process, so all of volcano-reshape must be
        installed.
        """
        try:
            from reshape.what_if.question import ask
        except ModuleNotFoundError as missing:
            raise ImportError(ALONE) from missing
        return ask(
            self,
            submit=submit,
            gpus=(gpus or {}).items(),
            drain=drain,
            policy=policy,
            queue_order=queue_order,
            deadlines=(deadlines or {}).items(),
            weights=(weights or {}).items(),
        )

    def remove(self, job_id: str) -> View:
        """Remove a job that has ended from the lists."""
        return self._ask("POST", f"/v1/jobs/{_part(job_id)}/remove")

    def rerun(self, job_id: str) -> View:
        """Submit a job that has ended once more, under its name."""
        return self._ask("POST", f"/v1/jobs/{_part(job_id)}/rerun")

    def slamls(self) -> list[View]:
        """Return all Slamls, the oldest first."""
        return self._rows("/v1/slamls", "slamls")

    def cancel_slaml(self, slaml: str) -> View:
        """Delete a Slaml by its id `slaml.NAMESPACE.NAME`, and cancel its jobs."""
        return self._ask("DELETE", f"/v1/slamls/{_part(slaml)}")

    def policy(self) -> View:
        """Return the systems that decide and their settings."""
        return self._ask("GET", "/v1/policy")

    def shares(self) -> View:
        """Return what queues and users may have, have and have used lately."""
        return self._ask("GET", "/v1/shares")

    def set_shares(self, text: str) -> View:
        """Replace `shares.yaml` by this text, and return what holds then."""
        return self._ask("POST", "/v1/shares", {"text": text})

    def usage(self, since: float = 0.0) -> list[View]:
        """Return GPU-hours by queue, user and GPU type since the hour of this time, in seconds since 1970."""
        return self._rows(f"/v1/usage?since={int(since)}", "usage")

    def jobs(self, include_ended: bool = False, within_s: int = 0) -> JobList:
        """Return the open jobs, and with them all ended ones, or those that ended in the last `within_s` seconds."""
        query = "?ended=true" if include_ended else f"?ended_within={within_s}" if within_s else ""
        return JobList(SubmittedJob(self, row) for row in self._rows(f"/v1/jobs{query}", "jobs"))

    def job(self, job_id: str) -> SubmittedJob:
        """Return one job as it is now."""
        return SubmittedJob(self, self._ask("GET", f"/v1/jobs/{_part(job_id)}"))

    def cancel(self, job_id: str) -> View:
        """Stop a job for good."""
        return self._ask("DELETE", f"/v1/jobs/{_part(job_id)}")

    def reshape(self, job_id: str, gpus: int | None, force: bool = False) -> str:
        """Request a GPU count (None: the scheduler's) and return the decision's id. `force`: even if work is lost."""
        body = {"gpus": gpus, **({"force": True} if force else {})}
        return str(self._ask("POST", f"/v1/jobs/{_part(job_id)}/reshape", body)["decision_id"])

    def suspend(self, job_id: str) -> str:
        """Let a job save, give its GPUs up and wait until it is resumed; return the decision's id."""
        return str(self._ask("POST", f"/v1/jobs/{_part(job_id)}/suspend")["decision_id"])

    def resume(self, job_id: str) -> str:
        """Let a suspended or held job start again, from where it had saved."""
        return str(self._ask("POST", f"/v1/jobs/{_part(job_id)}/resume")["decision_id"])

    def set_priority(self, job_id: str, priority: int) -> str:
        """Change the order of a job among those of its owner, the highest first; return the decision's id."""
        return str(self._ask("POST", f"/v1/jobs/{_part(job_id)}/priority", {"priority": priority})["decision_id"])

    def drain(self, node: str, at: float | None = None, until: float | None = None) -> View:
        """Let a node take no new work and its jobs leave; return these, each with the reason if it stays.

        `at`, `until`: in seconds since 1970, to do so for that time only.
        """
        times = {name: value for name, value in (("at", at), ("until", until)) if value is not None}
        return self._ask("POST", f"/v1/nodes/{_part(node)}/drain", times or None)

    def reserve(
        self,
        gpus: int,
        until: float,
        begin: float | None = None,
        *,
        node: str | None = None,
        gpu_type: str | None = None,
        user: str | None = None,
        nodes: int | None = None,
    ) -> View:
        """Keep GPUs for your jobs, from `begin` (now) until `until`, in seconds since 1970; return that.

        They are on one node, or on so many `nodes`, as many on each. `user`: another one, for administrators. Raises
        `CoordinatorRefused` with the earliest time if they cannot be had.
        """
        times = {"until": until, "from": begin}
        asked = {"gpus": gpus, **times, "node": node, "nodes": nodes, "gpu_type": gpu_type, "user": user}
        return self._ask(
            "POST", "/v1/reservations", {name: value for name, value in asked.items() if value is not None}
        )

    def reservations(self) -> list[View]:
        """Return the reservations and planned drains that have not ended, by their beginning."""
        return self._rows("/v1/reservations", "reservations")

    def unreserve(self, reservation_id: str) -> View:
        """End a reservation or a planned drain; jobs on its GPUs keep training."""
        return self._ask("DELETE", f"/v1/reservations/{_part(reservation_id)}")

    def undrain(self, node: str) -> View:
        """Let a drained node take jobs again."""
        return self._ask("POST", f"/v1/nodes/{_part(node)}/undrain")

    def curve(self, job_id: str) -> View:
        """Return how a job's training went, also after its end.

        `values`: pairs of iterations and what it measures of itself (`value_name`); `speeds`: of iterations and seconds
        per iteration; `gpus`: of iterations and the GPUs from there on. At most 65 pairs each.
        """
        return self._ask("GET", f"/v1/jobs/{_part(job_id)}/curve")

    def plot(self, job_id: str) -> JobPlot:
        """Return a picture of `curve` that a notebook shows; `save` writes it into a file."""
        _, picture = self._connection.call("GET", f"/v1/jobs/{_part(job_id)}/curve.svg")
        return JobPlot(self.curve(job_id), picture.decode())

    def logs(self, job_id: str, offset: int = 0) -> tuple[bytes, int]:
        """Return a piece of the job's output from byte `offset`, empty at the end, and the next offset."""
        headers, text = self._connection.call("GET", f"/v1/jobs/{_part(job_id)}/logs?offset={offset}")
        return text, int(headers[HEADER_OFFSET])

    def gpus(self) -> list[View]:
        return self._rows("/v1/gpus", "gpus")

    def nodes(self) -> list[View]:
        return self._rows("/v1/nodes", "nodes")

    def snapshot(self) -> View:
        """Return nodes, jobs on GPUs and settings as the scheduler sees them now: the input of `reshape what-if`."""
        return self._ask("GET", "/v1/snapshot")

    def journal(self, within_s: int = 0) -> View:
        """Return jobs as they were submitted, and what came: the input of `reshape replay`.

        `within_s`: of ended jobs only those that ended in the last so many seconds.
        """
        return self._ask("GET", f"/v1/journal{f'?ended_within={within_s}' if within_s else ''}")

    def decisions(self, job_id: str | None = None, limit: int = 100) -> list[View]:
        """Return the newest `limit` decisions, newest first; those of `job_id` if it is given."""
        query = {"limit": str(limit)} | ({} if job_id is None else {"job": job_id})
        return self._rows(f"/v1/decisions?{urlencode(query)}", "decisions")

    def decision(self, decision_id: str) -> View:
        return self._ask("GET", f"/v1/decisions/{_part(decision_id)}")

    def profiles(self, table: str) -> list[View]:
        return self._rows(f"/v1/profiles/{_part(table)}", "rows")

    def import_profiles(self, table: str, rows: Sequence[Mapping[str, Any]]) -> int:
        return int(self._ask("POST", f"/v1/profiles/{_part(table)}", {"rows": list(rows)})["imported"])

    def login_link(self) -> str:
        """Return the address that lets one browser into the dashboard, once, within some minutes."""
        made = self._ask("POST", "/v1/logins")
        return str(made.get("url", self.url)) + str(made["path"])

    def make_token(self, lasts_s: int) -> View:
        """Make a token by which this user calls a shared machine over TCP: `token`, shown once, `id` and `ends`."""
        return self._ask("POST", "/v1/tokens", {"lasts_s": lasts_s})

    def tokens(self) -> list[View]:
        """Return this user's own tokens that hold, without the tokens themselves."""
        return self._rows("/v1/tokens", "tokens")

    def revoke_token(self, token_id: str) -> View:
        """End one of this user's own tokens at once."""
        return self._ask("DELETE", f"/v1/tokens/{_part(token_id)}")

    def health(self) -> View:
        """Return the coordinator's health; an unhealthy one is not refused: `ok` is False then."""
        try:
            return self._ask("GET", "/healthz")
        except CoordinatorRefused as refusal:
            return {"ok": False, "sentence": str(refusal)}

    def events(
        self, after: int | None = None, job_id: str | None = None, follow: bool = True, until_end: bool = False
    ) -> EventStream:
        """Yield events as they happen, those after id `after` first, until the coordinator goes away.

        To resume, call again with the last event's `_id`. Close the iterator to end it earlier. `job_id`: of that only;
        with `until_end` until that has ended. Without `follow` it ends with the newest event that is kept.
        """
        query = {} if after is None else {"after": str(after)}
        query |= {} if follow else {"follow": "false"}
        query |= {"until_end_of": job_id} if until_end and job_id is not None else {}
        return EventStream(self._connection, f"/v1/events?{urlencode(query)}" if query else "/v1/events", job_id)

    def _rows(self, path: str, name: str) -> list[View]:
        rows: list[View] = self._ask("GET", path)[name]
        return rows

    def _ask(self, method: str, path: str, doc: Mapping[str, Any] | None = None) -> View:
        return self._connection.ask(method, path, doc)


def _known() -> tuple[str, str]:
    """URL and token by this process's environment."""
    if not (url := os.environ.get("RESHAPE_URL")):
        return _written(Path(os.environ.get("RESHAPE_STATE") or STATE).expanduser())
    return url, token_for(url, os.environ.get("RESHAPE_TOKEN", ""))


def token_for(url: str, given: str) -> str:
    """Return the token for a coordinator at this address: the one given, else that of the cluster's user."""
    if given or url.startswith(UNIX):
        return given
    if not (found := cluster_token(url)):
        raise CoordinatorUnreachable(f"The coordinator at {url} needs its token: set RESHAPE_TOKEN.")
    return found


def _written(state: Path) -> tuple[str, str]:
    """URL and token by the `up.json` of a state folder."""
    file = state / "up.json"
    try:
        found = json.loads(file.read_text("utf-8"))
        url, token = found["url"], found.get("token") or (state / found["token_file"]).read_text("utf-8").strip()
        Connection(url, token)
    except FileNotFoundError:
        if state == Path(STATE).expanduser() and users_socket().is_socket():
            return f"{UNIX}{users_socket()}", ""
        here = f"No coordinator is known in {state}; start one with `reshape up`"
        raise CoordinatorUnreachable(f"{here}, or name one elsewhere: RESHAPE_URL and RESHAPE_TOKEN.") from None
    except PermissionError as error:
        raise CoordinatorUnreachable(
            f"{error.filename} cannot be read; run this as the user of `reshape up`."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CoordinatorUnreachable(f"{file} is damaged; run `reshape up` again.") from None
    if state == Path(STATE).expanduser() and users_socket().is_socket() and not _answers(url):
        return f"{UNIX}{users_socket()}", ""
    return url, token


def _answers(url: str) -> bool:
    """Return whether the personal coordinator of that address runs; if not, the one of the machine is asked."""
    try:
        Connection(url, "").connected(ANSWERS_S).close()
    except CoordinatorUnreachable:
        return False
    return True


def _sentence(decision: View) -> str:
    """When it was decided, and why; of what has ended also what was predicted, beside what came."""
    receipt = decision.get("receipt")
    at = time.strftime("%H:%M:%S", time.localtime(decision["at"]))
    return f"{at}  {decision['sentence']}{' ' + receipt['sentence'] if receipt else ''}"


def _part(text: str) -> str:
    """Quote one part of a path; a job id from the user may hold any character."""
    return quote(text, safe="")
