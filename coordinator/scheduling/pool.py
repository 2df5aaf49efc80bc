"""Keeps the GPUs that placeholder pods hold for our jobs: whose jobs may use each, what to ask for and give back.

Promises: a GPU of a node with pools is given to a job only while a running placeholder pod of its namespace and queue
holds it, by the word of the node's agent and of the launcher; a placeholder that is asked back is released only after
the row of its GPU says that no training is left on it. What is wanted is decided by
`adaptive_scheduler.placeholders`; the launcher makes and removes the pods. All of it lies in tables `placeholders`
and `pool` and in the rows of GPUs, so a restart loses nothing. Called by the loop, in its thread.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from adaptive_scheduler.decision import Decision, Explanation, Hold
from adaptive_scheduler.placeholders import AskForGpus, ForeignWait, GiveBack, Placeholder, PoolState, plan_placeholders
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.config import Config
from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.records import ASKED_BACK, POOL, UNRESERVED, GpuRecord, JobRecord, number
from coordinator.model.tables import GpuChanges, NodeRow, PlaceholderChanges, PlaceholderRow, QueueRow, plain
from coordinator.ports import Clock, Doc
from coordinator.stores.cache import Cache

TABLE = "placeholders"
SEEN = "seen"  # the row of table `pool` that the launcher writes after all others
# What is wanted of a placeholder.
HOLD = "hold"
ASKED = "asked back"
RELEASE = "release"
LOOK_S = 1.0  # between two looks at what the launcher has written
ASK_REST = 10.0  # times as long as asking took it rests, since that decides for each pool anew
REFUSED_S = 60.0  # how long a pool asks for no more than it was let have, after a refusal
REST_S = 15.0  # in which others get the GPU of a node that was given back, before anything grows there
MARGIN_S = 5.0
WAITS = "waits for its GPUs"  # algorithm of a Hold


class GpuPool:
    """`look` reads and judges, `decide` asks and gives back; both once per cycle."""

    def __init__(self, cache: Cache, clock: Clock, config: Config, settings: Settings) -> None:
        self._cache = cache
        self._store = cache.store
        self._clock = clock
        self._config = config
        self._settings = settings
        self._rows: dict[str, PlaceholderRow] = {}
        self._mark: object = None  # of the launcher's last write that was read
        self._stale = self._begins = True
        self._look_at = 0.0
        self._waits: tuple[ForeignWait, ...] = ()
        self._idle_since: dict[str, float] = {}
        self._refused: dict[str, tuple[float, int, str]] = {}  # by pool: until when, how many it may have, why
        self._first_seen: dict[str, float] = {}
        self._rests: dict[str, float] = {}  # until when nothing grows on a node
        self._changes = 0  # of rows, so far
        self._judged: Mapping[str, GpuRecord] | None = None  # GPUs as last judged, after so many changes
        self._judged_after = 0
        self._plan_at = 0.0
        self._ask_at = 0.0
        self.reasons: Mapping[str, str] = {}
        """Why jobs wait for their placeholders, as the last cycle told it."""
        self.active = False
        """Whether any queue has its jobs in a pool, or a placeholder is left."""

    def begin(self) -> None:
        """Begin to act: another coordinator may have written."""
        self._stale = True
        self._look_at = 0.0
        self._mark = None
        self._begins = True

    def look(self, queues: Mapping[str, QueueRow]) -> None:
        """Read what has changed, and bring the rows of GPUs in line with it."""
        wanted = any(queue.get("devices") == POOL for queue in queues.values())
        self.active = wanted or bool(self._rows) or self._begins  # some may be left of queues that were in this mode
        if not self.active:
            return
        now = self._clock.now()
        if self._stale or now >= self._look_at:
            self._read_rows()
            self._look_at = now + LOOK_S
            self._begins = False
        if self._mark is None:  # nothing is known of placeholders: the launcher has not written yet
            return
        self._judge_rows()
        self._release_gpus()

    def _read_rows(self) -> None:
        seen = self._store.get("pool", SEEN)
        mark = None if seen is None else seen.get("mark")
        if seen is None or mark is None:
            self._mark = None
            return
        if mark == self._mark and not self._stale:
            return
        rows: dict[str, PlaceholderRow] = {str(row["_id"]): row for row in self._store.list(TABLE)}
        now = self._clock.now()
        self._first_seen = {name: self._first_seen.get(name, now) for name in rows}
        self._rows = rows
        self._mark = mark
        self._stale = False
        self._changes += 1
        self._plan_at = 0.0
        self._waits = tuple(_foreign_waits(wait) for wait in seen.get("waits") or () if isinstance(wait, dict))

    # which GPUs may be used

    def _judge_rows(self) -> None:
        """Write into the row of each GPU whose jobs may use it."""
        jobs = self._cache.jobs()
        gpus = self._cache.gpus()
        leaving = any(_leaves_at(row) is not None for row in self._rows.values())
        if self._judged is gpus and self._judged_after == self._changes and not leaving:
            return
        self._judged = gpus
        self._judged_after = self._changes
        holders = {_holder_of(row): row for row in self._rows.values() if _holder_of(row)}
        coming = self._coming_gpus(gpus.values())
        for gpu in gpus.values():
            if gpu.holder is None or _is_used_without_pool(gpu, jobs):
                continue
            wanted = self._judgement_of(gpu, holders.get(gpu.holder), coming)
            if changes := _changes_of(gpu, wanted):
                try:
                    self._cache.write_gpu(gpu, {"version": gpu.doc.get("version")}, changes)
                except Conflict:  # changed meanwhile: judged again in the next cycle
                    self._judged = None

    def _coming_gpus(self, gpus: Iterable[GpuRecord]) -> set[str]:
        """Return the groups of placeholders of which some are not held yet: none of their GPUs is used before."""
        holders = {gpu.holder: gpu for gpu in gpus if gpu.holder}
        coming = set[str]()
        used = set[str]()
        for row in self._rows.values():
            gpu = holders.get(_holder_of(row))
            if gpu is not None and gpu.pool:
                used.add(str(row.get("group")))
            if row.get("wanted") == HOLD and (gpu is None or not _is_held(row)):
                coming.add(str(row.get("group")))
        return coming - used

    def _judgement_of(self, gpu: GpuRecord, row: PlaceholderRow | None, coming: set[str]) -> GpuChanges:
        """Return `pool`, `problem` and `asked_back` of a GPU, of which `row` is the placeholder that holds it."""
        if row is None or not _is_held(row):
            by = f": {gpu.holder} holds it" if gpu.holder else " for our jobs"
            return {"pool": "", "problem": f"{UNRESERVED}{by}", "asked_back": "overdue" if gpu.job else ""}
        if row.get("group") in coming:
            return {"pool": "", "problem": f"{UNRESERVED} together with others yet", "asked_back": ""}
        if row.get("wanted") == HOLD and _leaves_at(row) is None:
            low = bool(row.get("opportunistic"))
            return {"pool": _pool_of(row), "problem": "", "asked_back": "", "opportunistic": low}
        left_s = None if (until := _leaves_at(row)) is None else until - self._clock.wall()
        config = self._config
        needed_s = config.grace_s + config.kill_s + config.term_s + MARGIN_S  # a coordinator may be replaced meanwhile
        overdue = left_s is not None and left_s < needed_s
        why = row.get("why") or "the cluster takes it back"
        asked = "overdue" if overdue else "asked"
        return {"pool": _pool_of(row), "problem": f"{ASKED_BACK}: {why}", "asked_back": asked}

    def _release_gpus(self) -> None:
        """Let the launcher remove the placeholders that are asked back and whose GPU no training has any more."""
        by_holder = {gpu.holder: gpu for gpu in self._cache.gpus().values() if gpu.holder}
        for row in list(self._rows.values()):
            gpu = by_holder.get(_holder_of(row))
            free = gpu is None or (gpu.faulty and gpu.job is None and gpu.held_by is None)
            if row.get("wanted") == ASKED and free:
                self._update_row(row, {"wanted": RELEASE})

    # what to ask for, and what to give back

    def decide(self, snapshot: ClusterSnapshot, nodes: Mapping[str, NodeRow]) -> None:
        """Ask for what the scheduler would use, and ask back what is not needed or what others wait for."""
        now = self._clock.now()
        if not self.active or self._mark is None or self._stale or now < self._plan_at:
            return
        self._plan_at = now + LOOK_S
        state = self._state_now(nodes)
        may_ask = now >= self._ask_at
        back, asks = plan_placeholders(snapshot, state, now, self._settings, may_ask)
        if may_ask:
            self._ask_at = now + ASK_REST * (self._clock.now() - now)
        for one in back:
            self._give_back(one, state.placeholders)
        for ask in asks:
            self._ask_for_gpus(ask)

    def _state_now(self, nodes: Mapping[str, NodeRow]) -> PoolState:
        now = self._clock.now()
        gpus = self._cache.gpus().values()
        by_holder = {gpu.holder: gpu for gpu in gpus if gpu.holder}
        known = tuple(self._placeholder_of(row, by_holder.get(_holder_of(row)), now) for row in self._rows.values())
        idle = {one.name for one in known if one.idle_s is not None}
        self._idle_since = {name: since for name, since in self._idle_since.items() if name in idle}
        self._refused = {pool: refused for pool, refused in self._refused.items() if refused[0] > now}
        most = {pool: count for pool, (_, count, _) in self._refused.items()}
        unheld = Counter(gpu.node for gpu in gpus if gpu.holder == "" and gpu.job is None and gpu.held_by is None)
        free = {node: min(count, _left_of(nodes.get(node, {}))) for node, count in unheld.items()}
        self._rests = {node: until for node, until in self._rests.items() if until > now}
        return PoolState(known, free, self._waits, frozenset(self._rests), most, self._config.pool_idle_s)

    def _placeholder_of(self, row: PlaceholderRow, gpu: GpuRecord | None, now: float) -> Placeholder:
        name = str(row["_id"])
        held = _is_held(row)
        unused = held and (gpu is None or (gpu.job is None and gpu.held_by is None))
        idle_s = now - self._idle_since.setdefault(name, now) if unused else None
        pod = row.get("pod") or {}
        return Placeholder(
            name=name,
            pool=_pool_of(row),
            node=pod.get("node") or row.get("node"),
            gpu=None if gpu is None else gpu.id,
            job=str(row.get("job_id") or ""),
            group=str(row.get("group") or name),
            opportunistic=bool(row.get("opportunistic")),
            held=held,
            going=row.get("wanted") != HOLD or bool(row.get("gone")),
            evicted=_leaves_at(row) is not None,
            age_s=now - self._first_seen.get(name, now),
            idle_s=idle_s,
            refused=str(row.get("failure") or ""),
        )

    def _give_back(self, one: GiveBack, known: Iterable[Placeholder]) -> None:
        row = self._rows[one.name]
        ours = [each for each in known if each.pool == _pool_of(row) and not each.going]
        reserved = next(each for each in ours if each.name == one.name)
        if one.rests is not None:
            self._rests[one.rests] = self._clock.now() + REST_S
        if one.refused:
            why = str(row.get("failure") or row.get("unplaced") or one.why)
            until = self._clock.now() + REFUSED_S
            self._refused[reserved.pool] = (until, sum(each.held for each in ours), why)
        self._update_row(row, {"wanted": ASKED if reserved.held else RELEASE, "why": one.why})

    def _ask_for_gpus(self, ask: AskForGpus) -> None:
        namespace, _, queue = ask.pool.partition("/")
        group = f"reshape-gpu-{secrets.token_hex(4)}"
        for index in range(ask.count):
            doc: PlaceholderChanges = {
                "_id": f"{group}-{index}",
                "namespace": namespace,
                "queue": queue,
                "node": ask.node,
                "job_id": ask.job,
                "group": group,
                "size": ask.firm or ask.count,
                "opportunistic": index >= ask.firm,
                "wanted": HOLD,
                "version": 1,
            }
            self._store.put(TABLE, plain(doc))
            self._rows[f"{group}-{index}"] = plain(doc)
            self._changes += 1
            self._first_seen[f"{group}-{index}"] = self._clock.now()

    def _update_row(self, row: PlaceholderRow, changes: PlaceholderChanges) -> None:
        try:
            self._rows[str(row["_id"])] = self._store.update(TABLE, row["_id"], {}, changes)
            self._changes += 1
        except Conflict:  # the launcher has removed it
            self._stale = True

    # why a job waits

    def told(self, snapshot: ClusterSnapshot, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
        """Return the decisions with the cluster's own reason where a job waits for its placeholders."""
        if not self.active:
            self.reasons = {}
            return tuple(decisions)
        asked: dict[str, list[PlaceholderRow]] = {}
        for row in self._rows.values():
            if row.get("wanted") == HOLD and not _is_held(row):
                asked.setdefault(str(row.get("job_id")), []).append(row)
        told = tuple(self._with_reason(snapshot, each, asked) for each in decisions)
        self.reasons = {one.job: one.explanation.sentence for one in told if one.explanation.algorithm == WAITS}
        return told

    def _with_reason(
        self, snapshot: ClusterSnapshot, decision: Decision, asked: Mapping[str, list[PlaceholderRow]]
    ) -> Decision:
        job = snapshot.job.get(decision.job)
        if not isinstance(decision, Hold) or job is None or not job.pool or job.state != s.SUBMITTED:
            return decision
        rows = asked.get(job.id, [])
        said = next((str(why) for row in rows if (why := row.get("failure") or row.get("unplaced"))), "")
        said = said or self._refused.get(job.pool, (0.0, 0, ""))[2]
        if not rows and not said:
            return decision
        count = len(rows) or job.optional[0]
        sentence = f"{job.id} waits until the cluster has reserved {count} GPU{'s' * (count != 1)} for it"
        sentence += f": {said.rstrip('.')}." if said else "."
        return replace(decision, explanation=Explanation(WAITS, sentence, decision.explanation.candidates))


def _foreign_waits(wait: Mapping[str, object]) -> ForeignWait:
    node = wait.get("node")
    gpus = int(number(wait.get("gpus"), 1) or 1)
    pods = int(number(wait.get("pods"), 1) or 1)
    return ForeignWait(str(wait.get("name")), gpus, str(node) if node else None, pods)


def _pool_of(row: PlaceholderRow) -> str:
    return f"{row.get('namespace') or ''}/{row.get('queue')}"


def _holder_of(row: PlaceholderRow) -> str:
    pod = row.get("pod") or {}
    return f"{pod['namespace']}/{row['_id']}" if pod.get("namespace") else ""


def _is_held(row: PlaceholderRow) -> bool:
    return (row.get("pod") or {}).get("phase") == "Running" and not row.get("gone")


def _leaves_at(row: PlaceholderRow) -> float | None:
    """Return when its grace period ends, on the wall clock; None if nobody deletes its pod."""
    return number((row.get("pod") or {}).get("leaves_at"))


def _left_of(node: NodeRow) -> int:
    """Return how many of a node's GPUs no pod requests, by the API server."""
    asked: Doc = node.get("pool") or {}
    allocatable = number(asked.get("allocatable"))
    requested = number(asked.get("requested"))
    return 0 if allocatable is None or requested is None else max(0, int(allocatable - requested))


def _is_used_without_pool(gpu: GpuRecord, jobs: Mapping[str, JobRecord]) -> bool:
    """True if a job that is in no pool has it, from before its node had pools."""
    job = jobs.get(str(gpu.job or gpu.held_by))
    return job is not None and not job.pool


def _changes_of(gpu: GpuRecord, wanted: GpuChanges) -> GpuChanges:
    """Return the fields to write. A GPU with another fault keeps that."""
    problem = str(gpu.doc.get("problem") or "")
    ours = problem.startswith((UNRESERVED, ASKED_BACK))
    if gpu.faulty and not ours:
        wanted = {"pool": wanted["pool"], "asked_back": wanted["asked_back"]}
    elif wanted["problem"]:
        wanted = {**wanted, "state": s.FAULTY, "unhealthy": True}
    else:
        wanted = {**wanted, "state": gpu.sound_state if gpu.faulty else gpu.state, "unhealthy": False}
    now: Doc = {**dict.fromkeys(wanted), **plain(gpu.doc)}
    return {field: value for field, value in wanted.items() if (now[field] or "") != (value or "")}
