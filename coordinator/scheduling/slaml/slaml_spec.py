"""Reads and checks a Slaml, and derives its job documents. Pure.

A row of table `slamls`, which the launcher keeps in sync with the object: `_id` (its uid), `namespace`, `name`,
`generation`, `created`, `spec` and `notes` (relevant annotations and labels) as JSON text, `deleted`, and where tasks
have no command `starts`, what the launcher read of their images. Called by `slaml_controller`. Each replica of each
task is one job document, because tasks are stopped and queued separately; it depends on the previous task by
`depends_on`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from adaptive_scheduler.snapshot import Task
from coordinator.model import pod_fields, requirements
from coordinator.model import states as s
from coordinator.model.records import Doc, number, show
from coordinator.model.schema.job_fields import LONGEST_JOB_ID
from coordinator.model.tables import SlamlRow
from coordinator.scheduling import intake
from coordinator.scheduling.slaml.slaml_fields import QUANTITY

GPUS = "volcano-reshape.io/gpus"  # annotation: GPU counts that its tasks with GPUs can run on
QUEUES = ("scheduling.volcano.sh/queue-name", "volcano.sh/queue-name")  # annotation or label: Volcano's queue
UNITS = {
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
}
# Fields that the task or the whole Slaml determines; a task's `job` must not set them.
TAKEN = frozenset(
    {
        "_id",
        "job_id",
        "uid",
        "state",
        "origin",
        "volcano",
        "slaml",
        "namespace",
        "queue",
        "image",
        "command",
        "sla",
        "tasks",
        "resources",
        "estimate",
        "depends_on",
        "num_gpus",
        "submit_ts",
        "closed",
        "owner",
    }
)
UNREAD = "unread"  # beside the fields of a task: why the command of its image is not known
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Slaml:
    """Typed view of one row. Reading never fails: an invalid value counts as absent, and `problems` reports it."""

    doc: SlamlRow
    spec: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_row(cls, doc: SlamlRow) -> Slaml:
        """View a row. The tasks of an accepted Slaml are those that were accepted (`plan`)."""
        spec, plan = _read(doc.get("spec")), _read(doc.get("plan"))
        if plan:
            spec = {**spec, "tasks": plan.get("tasks")}
        elif isinstance(spec.get("tasks"), list):
            starts = _read(doc.get("starts"))
            spec = {**spec, "tasks": [_started(task, starts) for task in spec["tasks"]]}
        return cls(doc, spec, plan.get("notes") or _read(doc.get("notes")))

    @property
    def uid(self) -> str:
        return str(self.doc["_id"])

    @property
    def namespace(self) -> str:
        return str(self.doc.get("namespace"))

    @property
    def name(self) -> str:
        return str(self.doc.get("name"))

    @property
    def generation(self) -> int:
        return int(number(self.doc.get("generation")) or 0)

    @property
    def id(self) -> str:
        """The id under which its verdicts are explained."""
        return f"slaml.{self.namespace}.{self.name}"

    @property
    def target_s(self) -> float | None:
        """Deadline in seconds; None without a valid one."""
        return requirements.seconds(self.spec.get("slaTarget")) if self.spec.get("isSla", True) else None

    @cached_property
    def parts(self) -> tuple[SlamlTask, ...]:
        given = self.spec.get("tasks")
        return tuple(SlamlTask(one) for one in given if isinstance(one, dict)) if isinstance(given, list) else ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(part.task for part in self.parts)

    @property
    def plan(self) -> str:
        """Tasks and notes as JSON text, stored at acceptance."""
        return json.dumps({"tasks": self.spec.get("tasks"), "notes": dict(self.notes)})

    def counts(self, part: SlamlTask) -> list[int]:
        """GPU counts that a task may run on: the annotation's, else exactly its request."""
        if not part.task.gpus:
            return [0]
        given = self.notes.get(GPUS)
        return _counts(given) if given is not None else [part.task.gpus]

    def key(self, place: int, replica: int) -> str:
        """The `_id` of a job document, which never changes."""
        return f"slaml-{self.uid}-{place}-{replica}"

    def job_id(self, place: int, replica: int) -> str:
        """`<namespace>.<slaml>.<task>.<i>`; with a part of the uid if an earlier Slaml used that id."""
        end = f".{self.parts[place].name}.{replica}" + (f".{self.uid[:8]}" if self.doc.get("again") else "")
        return f"{self.namespace}.{self.name}"[: LONGEST_JOB_ID - len(end)] + end


@dataclass(frozen=True)
class SlamlTask:
    """Typed view of one task of the spec."""

    spec: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.spec.get("taskName"))

    @property
    def replicas(self) -> int:
        return int(number(self.spec.get("containerReplicas"), 1) or 1)

    @property
    def image(self) -> str | None:
        """None without a `containerImage`, which one machine does not need."""
        if not self.spec.get("containerImage"):
            return None
        registry, image, tag = (self.spec.get(f"container{part}") for part in ("Registry", "Image", "Tag"))
        return (f"{registry}/" if registry else "") + str(image) + (f":{tag}" if tag else "")

    @cached_property
    def task(self) -> Task:
        cores, memory, gpus = (quantity(self.spec.get(name)) or 0.0 for name in ("CPU", "memory", "GPU"))
        return Task(self.name, cores, memory, int(gpus), self.replicas)

    @property
    def params(self) -> list[Any]:
        given = self.spec.get("modelParams")
        return given if isinstance(given, list) else []

    @property
    def more(self) -> Doc:
        """Additional fields of its job documents."""
        given = self.spec.get("job")
        return dict(given) if isinstance(given, dict) else {}

    def variables(self, replica: int) -> dict[str, str]:
        """`modelParams[i]` in the environment of replica i: `batch-size` becomes BATCH_SIZE."""
        if replica >= len(self.params) or not isinstance(self.params[replica], dict):
            return {}
        params = self.params[replica]
        single = {_variable(str(key)): _text(value) for key, value in params.items()}
        return {**single, "MODEL_PARAMS": json.dumps(params)}


def _started(task: Any, starts: Mapping[str, Any]) -> Any:
    """The task with the command that its image has, as Kubernetes would start it; else why that is not known."""
    found = starts.get(str(SlamlTask(task).image)) if isinstance(task, dict) and not task.get("command") else None
    if not isinstance(found, dict):
        return task
    if why := found.get("why"):
        return {**task, UNREAD: why}
    parts = [found.get(name) for name in ("entrypoint", "cmd")]
    entrypoint, cmd = (part if isinstance(part, list) else [] for part in parts)
    return {**task, "command": [*entrypoint, *([] if task.get("args") else cmd)]}


def problems(slaml: Slaml) -> list[str]:
    """Errors that the API server does not check, as sentences that say what to write."""
    found = list(_own_problems(slaml))
    if found:
        return found
    for place, part in enumerate(slaml.parts):
        wrong = intake.problems(document(slaml, place, 0))
        found += [f"task {part.name}: {sentence}" for sentence in wrong]
    return found


def _own_problems(slaml: Slaml) -> Iterator[str]:
    target = slaml.spec.get("slaTarget")
    if slaml.spec.get("isSla", True) and slaml.target_s is None:
        yield f'slaTarget must be seconds above 0, or a text such as "90s", "15m" or "2h", not {show(target)}'
    if not slaml.parts:
        yield "tasks is empty: list at least one task"
    if GPUS in slaml.notes and not _counts(slaml.notes[GPUS]):
        yield f'the annotation {GPUS} must be GPU counts such as "1,2,4", not {show(slaml.notes[GPUS])}'
    for part in slaml.parts:
        yield from (f"task {part.name}: {sentence}" for sentence in _part_problems(part))


def _part_problems(part: SlamlTask) -> Iterator[str]:
    if not part.spec.get("command"):
        why = f"; it was not read from the image: {part.spec[UNREAD]}" if part.spec.get(UNREAD) else ""
        yield (
            "command is missing: write there what its image would start (its ENTRYPOINT), because reshape puts its own "
            f"program before it{why}"
        )
    for name in ("CPU", "memory", "GPU"):
        if (given := part.spec.get(name)) is not None and quantity(given) is None:
            yield f'{name} must be a quantity such as "2", "500m" or "2Gi", not {show(given)}'
    if (quantity(part.spec.get("GPU")) or 0.0) % 1:
        yield f"GPU must be a whole number, not {show(part.spec.get('GPU'))}"
    if part.params and len(part.params) != part.replicas:
        yield f"modelParams has {len(part.params)} entries for {part.replicas} replicas: give one to each, or none"
    for params in part.params:
        odd = [k for k, v in params.items() if not _fits(str(k), v)] if isinstance(params, dict) else ["?"]
        yield from (f"modelParams: {show(one)} must be a name with a number or a text" for one in odd[:1])
    if odd_fields := sorted(str(name) for name in part.more if name in TAKEN):
        yield f"job cannot set {', '.join(odd_fields)}: the Slaml determines that"


def documents(slaml: Slaml) -> list[Doc]:
    """One job document per replica of each task, in order."""
    return [
        document(slaml, place, replica) for place, part in enumerate(slaml.parts) for replica in range(part.replicas)
    ]


def document(slaml: Slaml, place: int, replica: int) -> Doc:
    """The job document of one replica. `tasks` holds the remaining tasks of the Slaml, the present one first."""
    part = slaml.parts[place]
    before = range(slaml.parts[place - 1].replicas) if place else ()
    queue = next((slaml.notes[key] for key in QUEUES if slaml.notes.get(key)), None)
    doc: Doc = {
        "optional_num_gpus": slaml.counts(part),
        **part.more,
        "_id": slaml.key(place, replica),
        "job_id": slaml.job_id(place, replica),
        "state": s.SUBMITTED,
        "origin": "record",
        "namespace": slaml.namespace,
        "command": [*(part.spec.get("command") or []), *(part.spec.get("args") or [])],
        "tasks": [_task(task, task.replicas if n else 1) for n, task in enumerate(slaml.tasks[place:])],
        "depends_on": [slaml.job_id(place - 1, n) for n in before],
        "slaml": {
            "namespace": slaml.namespace,
            "name": slaml.name,
            "uid": slaml.uid,
            "since": slaml.doc.get("since"),
        },
    }
    more: Doc = {"queue": queue} if queue else {}
    if part.image is not None:
        more["image"] = part.image
    if slaml.target_s is not None:
        more["sla"] = slaml.target_s
    if env := _environment(part, replica):
        more["env"] = env
    if pod := _pod(part):
        more["pod"] = pod
    return doc | more


def _task(task: Task, replicas: int) -> Doc:
    return {"name": task.name, "cores": task.cores, "memory": task.memory, "gpus": task.gpus, "replicas": replicas}


def _environment(part: SlamlTask, replica: int) -> Any:
    own = part.more.get("env")
    return own if own is not None and not isinstance(own, dict) else {**part.variables(replica), **(own or {})}


def _pod(part: SlamlTask) -> Any:
    """The `pod` field with the task's CPU and memory requests; an invalid one is left for intake to reject."""
    requests = {key.lower(): str(part.spec[key]) for key in ("CPU", "memory") if part.spec.get(key) is not None}
    if not requests:
        return part.more.get("pod")
    try:
        pod = pod_fields.pod_spec(part.more)
        trainer, *others = pod.get("containers") or [{}]
        resources = trainer.get("resources") or {}
        asked = {**resources, "requests": {**(resources.get("requests") or {}), **requests}}
        return {**pod, "containers": [{**trainer, "resources": asked}, *others]}
    except (TypeError, ValueError, AttributeError):
        return part.more.get("pod")


def quantity(value: object) -> float | None:
    """Parse a Kubernetes quantity such as `2m`, `500Mi`, `1.5` or `4`; None if invalid."""
    match = QUANTITY.fullmatch(str(value)) if isinstance(value, str) else None
    return float(match[1]) * UNITS.get(match[2], 1.0) if match else number(value)


def _counts(text: object) -> list[int]:
    words = [word.strip() for word in str(text).split(",")]
    return sorted({int(word) for word in words}) if all(re.fullmatch("[0-9]{1,5}", word) for word in words) else []


def _variable(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", key).upper()


def _fits(key: str, value: object) -> bool:
    return bool(PLAIN.fullmatch(_variable(key))) and isinstance(value, int | float | str)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(text: object) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
