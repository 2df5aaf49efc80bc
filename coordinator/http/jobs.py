"""Handlers for jobs, Slamls, what operators ask of them, their logs, GPUs, nodes and decisions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from coordinator.errors import Rejected
from coordinator.http import wire
from coordinator.http.base import Handler
from coordinator.model.owner_names import OWNER

LOG_CHUNK = 256 * 1024  # bytes per answer
MOST_DECISIONS = 1000
LONGEST_ID = 512  # characters, as sent; intake accepts no longer ids
HEADER_OFFSET = "X-Reshape-Offset"
HEADER_USER = "X-Reshape-User"


class JobsHandler(Handler):
    async def get(self) -> None:
        include_ended = wire.truth("ended", self.get_query_argument("ended", None))
        within_s = wire.whole("ended_within", self.get_query_argument("ended_within", None), 0, 0, wire.MAX_INTEGER)
        self.answer({"jobs": await self.call(self.services.jobs.list_jobs, include_ended, within_s)})

    async def post(self) -> None:
        doc = self.read() if self.knows_callers else self._with_owner(self.read())
        if wire.truth("dry_run", self.get_query_argument("dry_run", None)):
            self.answer(await self.call(self.services.submissions.submit, doc, True))
            return
        job = await self.call(self.services.submissions.submit, doc)
        self.set_header("Location", f"/v1/jobs/{quote(str(job['job_id']), safe='')}")
        self.answer(job, 201)

    def _with_owner(self, doc: dict[str, Any]) -> dict[str, Any]:
        """The document with the user that the client runs as, if it names no owner itself; nobody proves either."""
        user = self.request.headers.get(HEADER_USER, "")
        return {"owner": user, **doc} if OWNER.fullmatch(user) else doc


class JobHandler(Handler):
    async def get(self, job_id: str) -> None:
        self.answer(await self.call(self.services.jobs.job, job_id))

    async def delete(self, job_id: str) -> None:
        self.answer(await self.call(self.services.operator.cancel, job_id), 202)


class ReshapeHandler(Handler):
    """An operator's request for a GPU count; the scheduler carries it out as soon as it can."""

    async def post(self, job_id: str) -> None:
        doc = self.read()
        wire.only_fields(doc, "gpus", maybe=("force",))
        gpus, force = doc["gpus"], doc.get("force", False)
        if gpus is not None and (type(gpus) is not int or not 1 <= gpus <= 65536):
            raise Rejected("gpus must be a whole number from 1 to 65536, or null to let the scheduler choose again.")
        if type(force) is not bool:
            raise Rejected("force must be true, to lose what the training has not saved, or false.")
        self.answer(await self.call(self.services.operator.request, job_id, gpus, None, force), 202)


class RemoveHandler(Handler):
    async def post(self, job_id: str) -> None:
        self.answer(await self.call(self.services.operator.remove, job_id))


class RerunHandler(Handler):
    async def post(self, job_id: str) -> None:
        self.answer(await self.call(self.services.submissions.rerun, job_id), 201)


class SlamlsHandler(Handler):
    async def get(self) -> None:
        self.answer({"slamls": await self.call(self.services.slamls.all)})

    async def post(self) -> None:
        dry_run = wire.truth("dry_run", self.get_query_argument("dry_run", None))
        self.answer(await self.call(self.services.slamls.apply, self.read(), dry_run), 200 if dry_run else 201)


class SlamlHandler(Handler):
    async def delete(self, slaml_id: str) -> None:
        self.answer(await self.call(self.services.slamls.delete, slaml_id), 202)


class PolicyHandler(Handler):
    async def get(self) -> None:
        self.answer(await self.call(self.services.fleet.policy))


class SuspendHandler(Handler):
    async def post(self, job_id: str) -> None:
        self.answer(await self.call(self.services.operator.suspend, job_id), 202)


class ResumeHandler(Handler):
    async def post(self, job_id: str) -> None:
        self.answer(await self.call(self.services.operator.resume, job_id), 202)


class PriorityHandler(Handler):
    async def post(self, job_id: str) -> None:
        doc = self.read()
        wire.only_fields(doc, "priority")
        if type(doc["priority"]) is not int:
            raise Rejected("priority must be a whole number.")
        self.answer(await self.call(self.services.operator.set_priority, job_id, doc["priority"]), 202)


class CurveHandler(Handler):
    async def get(self, job_id: str) -> None:
        self.answer(await self.call(self.services.jobs.curve, job_id))


class CurvePictureHandler(Handler):
    """The same as a picture, for notebooks, which need nothing to draw it then."""

    async def get(self, job_id: str) -> None:
        curve = await self.call(self.services.jobs.curve, job_id)
        self.set_header("Content-Type", "image/svg+xml; charset=utf-8")
        self.write(self.settings["dashboard"].pages.curve_picture(curve))


class LogsHandler(Handler):
    """Raw bytes of the output; a header holds the offset of the next read."""

    async def get(self, job_id: str) -> None:
        offset = wire.whole("offset", self.get_query_argument("offset", None), 0, 0, wire.MAX_INTEGER)
        text, after = await self.call(self.services.output.logs, job_id, offset, LOG_CHUNK)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header(HEADER_OFFSET, str(after))
        self.write(text)


class GpusHandler(Handler):
    async def get(self) -> None:
        self.answer({"gpus": await self.call(self.services.fleet.gpus)})


class NodesHandler(Handler):
    async def get(self) -> None:
        self.answer({"nodes": await self.call(self.services.fleet.nodes)})


class DrainHandler(Handler):
    drained = True

    async def post(self, node: str) -> None:
        doc = self.read() if self.body else {}
        wire.only_fields(doc, maybe=("at", "until") if self.drained else ())
        begins = wire.time("at", doc.get("at"))
        ends = wire.time("until", doc.get("until"))
        if begins is None and ends is None:
            self.answer(await self.call(self.services.drains.drain, node, self.drained), 202)
            return
        if begins is None:
            begins = await self.call(self.services.status.wall)
        self.answer(await self.call(self.services.reservations.plan_drain, node, begins, ends), 202)


class UndrainHandler(DrainHandler):
    drained = False


class SnapshotHandler(Handler):
    async def get(self) -> None:
        self.answer(await self.call(self.services.simulations.snapshot))


class JournalHandler(Handler):
    async def get(self) -> None:
        within_s = wire.whole("ended_within", self.get_query_argument("ended_within", None), 0, 0, wire.MAX_INTEGER)
        self.answer(await self.call(self.services.simulations.journal, within_s))


class DecisionsHandler(Handler):
    async def get(self) -> None:
        limit = wire.whole("limit", self.get_query_argument("limit", None), 100, 1, MOST_DECISIONS)
        job_id = self.get_query_argument("job", None)
        if job_id is not None and len(job_id) > LONGEST_ID:
            raise Rejected("There is no job with so long a name.", 404)
        self.answer({"decisions": await self.call(self.services.history.decisions, job_id, limit)})


class DecisionHandler(Handler):
    async def get(self, decision_id: str) -> None:
        self.answer(await self.call(self.services.history.decision, decision_id))
