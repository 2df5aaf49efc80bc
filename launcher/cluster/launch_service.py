"""Brings every launch of table `launches` to its wanted state, in one thread.

Promises: only one launcher acts (`Elector`), and only while its watches are in step, so an API server that is away
stops it and loses nothing; a launcher killed anywhere is followed by one that applies the same objects again; a
launch that fails becomes one sentence in its document. `controllers/launch.py` decides what to do, without I/O.
Started by `process.py`.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from coordinator.errors import Conflict, ReshapeError, Transient
from coordinator.model.tables import JobRow, LaunchChanges, LaunchRow, plain
from coordinator.ports import Clock, Store
from coordinator.stores.elector import Elector
from launcher import playbook
from launcher.admission.inject import PodSettings, placed_pod
from launcher.cluster.api import ApiUnavailable, Doc, KubernetesApi
from launcher.cluster.controllers import gang_launch, one_pod_jobs
from launcher.cluster.controllers.gated_pods import GatedPods
from launcher.cluster.controllers.kept_records import KeptRecords
from launcher.cluster.controllers.launch import (
    AdoptPod,
    DeleteLaunch,
    DeletePod,
    LaunchState,
    OpenGate,
    PlayLaunch,
    PlayRemove,
    ScaleVolcanoJob,
    Step,
    SuspendJob,
    WriteLaunch,
    steps,
)
from launcher.cluster.controllers.launch_state import LaunchStates
from launcher.cluster.controllers.node import NodeController
from launcher.cluster.controllers.other_kinds import OtherKinds
from launcher.cluster.controllers.placeholders import PlaceholderController
from launcher.cluster.controllers.slaml import SlamlSync
from launcher.cluster.controllers.volcano_job import VolcanoJobController, labelled_queues
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.informer import Informer
from launcher.cluster.metrics import LauncherMetrics
from launcher.cluster.pods import job_spec, placeholder_pods
from launcher.cluster.pods.log_reader import LogReaders
from launcher.cluster.pods.pod_state import ObservedCluster, Pod
from launcher.cluster.pods.resize import PodResizer
from launcher.cluster.registry import ImageCommands
from launcher.launch_queue import Cancelled, LaunchQueue, Verb
from launcher.names import JOB, JOB_ID, job_name
from sidecar.startup import log_format

TABLE = "launches"
POLL_S = 0.5
BREATH_S = 0.1  # between turns, however much changes
REMOVE_AGAIN_S = 5.0
REST_S = 5.0
STUCK_TERMS = 4  # a turn that takes longer may never end: the term is no longer renewed and another launcher acts
NO_VOLCANO = (
    "this cluster has no Volcano, and this installation launches records as Volcano Jobs: install Volcano, or "
    "volcano-reshape without it (manifests/overlays/without-volcano, or volcano.enabled=false of the chart)"
)
FOR_ANSIBLE = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")

log = logging.getLogger(__name__)


class LaunchService:
    """The launcher's loop: `start` begins its threads, `stop` ends them; launches live on."""

    def __init__(
        self,
        store: Store,
        cluster: KubernetesApi,
        clock: Clock,
        elector: Elector,
        settings: PodSettings,
        master_key: bytes,
        namespaces: tuple[str, ...],
        playbooks: Path,
        folder: Path,
        timeout_s: float,
        registries: tuple[str, ...] = (),
    ) -> None:
        self._store, self._cluster, self._clock, self.elector = store, cluster, clock, elector
        self._settings, self._master_key, self._timeout_s = settings, master_key, timeout_s
        self._playbooks, self._folder = playbooks, folder
        self._wake, self._stopping = threading.Event(), threading.Event()
        wake, within = self._wake.set, namespaces or (None,)
        self._pods = [Informer(cluster, "Pod", namespace, JOB, wake) for namespace in within]
        of_volcano = within if settings.volcano else ()
        self._jobs = [Informer(cluster, "Job", namespace, None, wake) for namespace in of_volcano]
        self._batch_jobs = [Informer(cluster, "BatchJob", namespace, JOB, wake) for namespace in within]
        self._queues = [Informer(cluster, "Queue", None, None, wake)] if settings.volcano else []
        self._groups = [
            Informer(cluster, "PodGroup", namespace, None, lambda: None, placeholder_pods.shortened_group)
            for namespace in of_volcano
        ]
        self.patience_s = 2 * settings.heartbeat_s + settings.grace_s + settings.kill_s
        self.events = EventWriter(cluster, clock, "reshape-launcher")
        self._volcano_jobs = VolcanoJobController(
            store, cluster, clock, self.events, settings, self.patience_s, master_key, namespaces
        )
        self._other_kinds = OtherKinds(cluster, self.events, self._groups)
        self._gated = GatedPods(cluster, clock, self.events)
        self._slamls = SlamlSync(store, cluster, self.events, namespaces, wake, ImageCommands(registries, wake))
        self._nodes = NodeController(store, cluster, clock, namespaces)
        self._placeholders = PlaceholderController(
            store, cluster, clock, settings, master_key, self._nodes.foreign, namespaces, self._groups, wake
        )
        self._logs = LogReaders(store, cluster, clock, settings, master_key, namespaces)
        self.metrics = LauncherMetrics(
            lambda: elector.leads, lambda: sum(not _is_true(informer) for informer in self._informers)
        )
        self._runs = LaunchQueue(self._carry_out, self.metrics.playbook)
        self._states = LaunchStates(store, cluster, clock, settings, self.patience_s, self._runs.under_way)
        self._kept = KeptRecords(store, cluster, master_key)
        self._compared = False  # whether the store was compared with what runs since this launcher acts
        self._resizing = PodResizer(TABLE, store, cluster, clock, self.events)
        self._played: dict[str, float] = {}  # when the removal of each launch was played last
        self._rests: dict[str, float] = {}  # launches that went wrong are left alone until then
        self._unanswered: set[str] = set()  # launches whose playbook failed because the API server did not answer
        self._turned_at = 0.0
        self._thread = threading.Thread(target=self._run, name="launches", daemon=True)
        self._renewing = threading.Thread(target=self._renew, name="term", daemon=True)
        self.trouble = "Starting."  # empty once the last turn went well

    def start(self) -> None:
        for informer in [*self._informers, *self._groups]:
            informer.start()
        self._slamls.start()
        self._nodes.start()
        self._placeholders.start()
        self._thread.start()
        self._renewing.start()

    def stop(self) -> None:
        """End the threads and resign. Running playbooks are stopped; the successor runs them again."""
        self._stopping.set()
        self._wake.set()
        for informer in [*self._informers, *self._groups]:
            informer.stop()
        self._slamls.stop()
        self._nodes.stop()
        self._placeholders.stop()
        self._thread.join(timeout=10)
        self._renewing.join(timeout=10)
        self._runs.stop_all(timeout=5.0)
        try:
            self.elector.resign()
        except ReshapeError as error:
            log.warning("could not tidy up the store on leaving: %s", error)

    @property
    def ready(self) -> bool:
        """True if the list of queues was read, which the webhook needs, or the cluster has none.

        True also on a launcher that stands by.
        """
        return all(informer.known or informer.absent for informer in self._queues)

    @property
    def _informers(self) -> list[Informer]:
        return [*self._pods, *self._jobs, *self._batch_jobs, *self._queues]

    @property
    def has_volcano_jobs(self) -> bool:
        """True if Volcano Jobs are watched; False where the cluster or this installation is without Volcano."""
        return bool(self._jobs) and not any(informer.absent for informer in self._jobs)

    def queues_of_volcano(self) -> dict[str, Doc] | None:
        """Return Volcano's queues by name; None where there is no Volcano."""
        absent = not self._queues or any(informer.absent for informer in self._queues)
        return None if absent else self.queues()

    def queues(self) -> dict[str, Doc]:
        """Return Volcano's queues by name."""
        return {str(doc["metadata"]["name"]): doc for informer in self._queues for doc in informer.items().values()}

    def observed(self) -> ObservedCluster:
        """Return the present content of all informers."""
        watched = self.has_volcano_jobs  # asked first: what is listed after it was absent is not taken for gone
        pods = {uid: Pod(doc) for informer in self._pods for uid, doc in informer.items().items()}
        pods |= {uid: pod for informer in self._pods for uid, pod in informer.vanished().items()}
        jobs = {uid: doc for informer in self._jobs for uid, doc in informer.items().items()}
        batch = {uid: doc for informer in self._batch_jobs for uid, doc in informer.items().items()}
        jobs |= {uid: one_pod_jobs.read_batch_job(doc) for uid, doc in batch.items()}
        jobs |= {uid: found for uid, pod in pods.items() if (found := one_pod_jobs.read_pod(pod)) is not None}
        return ObservedCluster(pods, jobs, self.queues(), watched)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self._turn()
            except Transient as error:
                self.trouble = str(error)
                log.warning("%s", error)
            except Exception as error:  # one bad turn must not end the launcher
                self.trouble = f"The launcher's loop failed: {error}"
                log.exception("the loop failed")
                self._stopping.wait(POLL_S)
            self._stopping.wait(BREATH_S)
            self._wake.wait(POLL_S)

    def _renew(self) -> None:
        """Keep the term while a turn takes long."""
        term_s = self.elector.term_s
        while not self._stopping.wait(term_s / 5):
            if self.elector.leads and self._clock.now() - self._turned_at < STUCK_TERMS * term_s:
                with suppress(ReshapeError):
                    self.elector.try_to_lead()

    def _turn(self) -> None:
        self._turned_at, led = self._clock.now(), self.elector.leads
        if not self.elector.try_to_lead():
            self.trouble = f"Another launcher ({self.elector.holder()}) acts on this store."
            return
        if behind := [informer for informer in self._informers if not _is_true(informer)]:
            why = next((informer.trouble for informer in behind if informer.trouble), "")
            self.trouble = why or "The API server does not answer, or refuses a watch."
            return
        observed = self.observed()
        self._compare(observed, led)
        records = self._store.list(TABLE)
        self.metrics.launches(records)
        # Jobs are read after launches: a launch whose job is deleted or has a newer launch is not wanted.
        jobs = {str(doc["_id"]): doc for doc in self._store.list("jobs", {"closed": False})}
        lost = self._states.lost(records, jobs)
        trouble = self._turn_controllers(observed, jobs)
        claimed = {uid: record["_id"] for record in records for uid in gang_launch.recorded_uids(record)}
        settled = not lost
        for record in (each for each in records if each["_id"] not in lost):
            if not led:  # runs from before another launcher acted are outdated
                self._runs.forget(record["_id"])
            with log_format.about(job=record.get("job_id"), launch=record.get("launch")):
                settled = self._tend(record, observed, jobs, claimed) and settled
        for informer in self._pods if settled else ():
            informer.looked_at([uid for uid, pod in observed.pods.items() if pod.deleted])
        self._forget_times({str(record["_id"]) for record in records})
        self._resizing.forget_all_but(observed.pods)
        self.metrics.turned(self._clock.now() - self._turned_at)
        self.trouble = trouble

    def _compare(self, observed: ObservedCluster, led: bool) -> None:
        """Write back what the store has lost, when this launcher begins to act or finds the store emptied."""
        if led and self._compared and not self.elector.rewound:
            return
        self._compared = False
        self._kept.write_back(observed)
        self.elector.rewound = False
        self._compared = True

    def _turn_controllers(self, observed: ObservedCluster, jobs: Mapping[str, JobRow]) -> str:
        """Run the other controllers; return the last error. An error in one hinders neither the others nor launches."""
        trouble = ""
        turns: dict[str, Callable[[], None]] = {
            "Volcano Jobs": partial(self._volcano_jobs.turn, observed, jobs),
            "Slamls": self._slamls.turn,
            "gated pods": partial(self._gated.turn, observed),
            "other kinds": partial(self._other_kinds.turn, labelled_queues(observed), observed.jobs.keys()),
            "nodes": self._nodes.turn,
            "placeholders": partial(self._placeholders.turn, observed.queues),
            "logs": partial(self._logs.turn, observed),
        }
        for what, turn in turns.items():
            try:
                turn()
            except ReshapeError as error:
                log.warning("%s: %s", what, error)
                trouble = str(error)
            except Exception as error:
                log.exception("%s", what)
                trouble = f"The launcher's part for {what} failed: {error}"
        return trouble

    def _forget_times(self, known: set[str]) -> None:
        self._states.forget_all_but(known)
        for times in (self._played, self._rests):
            for name in times.keys() - known:
                del times[name]
        self._unanswered &= known
        self._kept.forget_all_but(known)

    # one launch

    def _tend(
        self, record: LaunchRow, observed: ObservedCluster, jobs: Mapping[str, JobRow], claimed: Mapping[str, str]
    ) -> bool:
        """Reconcile one launch; False if the observed pods are needed once more. A bad document hurts only itself."""
        if self._clock.now() < self._rests.get(record["_id"], 0.0):
            return False
        if self._states.is_out_of_sight(record, observed):
            return False
        try:
            view = self._states.view(record, observed, jobs, claimed)
            for step in gang_launch.steps(view) if view.bindings else steps(view):
                record = self._perform(step, record, view)
            job = None if view.over else jobs.get(str((record.get("doc") or {}).get("_id")))
            self._resizing.look(record, view.pods, job, view.job)
            if view.wanted:
                self._kept.keep(record, view.job)
        except Conflict:
            self._wake.set()  # its document has changed
            return False
        except Transient as error:
            log.warning("launch %s: %s", record["_id"], error)
            return False
        except ReshapeError as error:
            log.error("launch %s: %s", record["_id"], error)
            self._rests[record["_id"]] = self._clock.now() + REST_S
            return self._failed(record, str(error))
        except Exception:
            log.exception("launch %s", record.get("_id"))
            self._rests[record["_id"]] = self._clock.now() + REST_S
        return True

    def _failed(self, record: LaunchRow, why: str) -> bool:
        now = self._store.get(TABLE, record["_id"])
        if now is None or now.get("wanted") != "launch" or now.get("failure") is not None:
            return True
        try:
            self._store.update(TABLE, now["_id"], {"version": now.get("version")}, {"failure": why})
        except ReshapeError:
            return False
        return True

    def _perform(self, step: Step, record: LaunchRow, view: LaunchState) -> LaunchRow:
        """Carry out the step; return the record as it is afterwards."""
        match step:
            case WriteLaunch():
                return self._note(record, step.changes, view)
            case PlayLaunch():
                return self._launch(record, view)
            case PlayRemove():
                self._remove(record)
            case AdoptPod():
                return self._adopt(step, record, view)
            case ScaleVolcanoJob():
                self._scale(step, record, view)
            case DeletePod():
                log.info("deleting pod %s/%s for launch %s", step.pod.namespace, step.pod.name, record["_id"])
                self._cluster.delete("Pod", step.pod.name, step.pod.namespace, step.pod.uid)
            case OpenGate():
                self._open_gate(step.pod, record)
            case SuspendJob():
                self._suspend(step.suspend, record, view)
            case DeleteLaunch():
                self._forget(record)
        return record

    def _note(self, record: LaunchRow, changes: LaunchChanges, view: LaunchState) -> LaunchRow:
        after = self._store.update(TABLE, record["_id"], {"version": record.get("version")}, changes)
        if "failure" in changes and changes["failure"] is not None and not any(pod.finished for pod in view.pods):
            log.info("launch %s failed: %s", record["_id"], changes["failure"])
            if view.job is not None:
                self.events.write(view.job, "LaunchFailed", changes["failure"], warning=True)
        return after

    def _launch(self, record: LaunchRow, view: LaunchState) -> LaunchRow:
        """Request the playbook. If it failed although the API server answers, the launch has failed."""
        if self._settings.volcano and not self.has_volcano_jobs:
            return self._note(record, {"failure": NO_VOLCANO}, view)
        name = record["_id"]
        failure = self._runs.failure(name)
        if failure is not None and name not in self._unanswered and self._cluster.answers():
            record = self._note(record, {"failure": failure}, view)
            self._runs.forget(name)
            return record
        self._runs.request(name, "launch", plain(record))
        return record

    def _remove(self, record: LaunchRow) -> None:
        """Request the playbook, at most every `REMOVE_AGAIN_S`: it keeps a core busy for a second."""
        name, now = record["_id"], self._clock.now()
        if now - self._played.get(name, float("-inf")) >= REMOVE_AGAIN_S:
            self._played[name] = now
            self._runs.request(name, "remove", plain(record))

    def _adopt(self, step: AdoptPod, record: LaunchRow, view: LaunchState) -> LaunchRow:
        pod, member = step.pod, step.member
        record = self._note(record, gang_launch.adopted(step, record, applied=False), view)
        emulated = self._emulated(record["doc"] if member is None else {"node": pod.node})
        about = record["doc"], pod.doc, self._settings, self._master_key, emulated, member or 0
        self._cluster.apply(job_spec.launch_secret(*about))
        if view.job is not None:
            which = "" if member is None else f", pod {member}"
            what = f"Launch {record['launch']} of job {record['job_id']}{which} on node {pod.node}."
            self.events.write(view.job, "Launched", what)
        return self._note(record, gang_launch.adopted(step, record, applied=True), view)

    def _scale(self, step: ScaleVolcanoJob, record: LaunchRow, view: LaunchState) -> None:
        """Set the counts of pods, only of the Volcano Job with the uid that was observed."""
        meta = (view.job or {})["metadata"]
        values = {"/tasks/0/replicas": step.replicas, "/tasks/0/minAvailable": step.least, "/minAvailable": step.least}
        log.info("launch %s: %d pods, %d at least", record["_id"], step.replicas, step.least)
        self._cluster.patch_json(
            "Job",
            meta["name"],
            [
                {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
                *({"op": "add", "path": f"/spec{path}", "value": value} for path, value in values.items()),
            ],
            meta.get("namespace"),
        )

    def _open_gate(self, pod: Pod, record: LaunchRow) -> None:
        """Pin the pod to the decided node and take its gate off, and write the names of its job on it."""
        node = (record.get("doc") or {}).get("node")
        log.info("launch %s: pod %s/%s goes to node %s", record["_id"], pod.namespace, pod.name, node)
        job_label = job_name(str(record["job_id"]), str(record["uid"]))
        changes = placed_pod(pod.doc, node, {JOB: job_label}, {JOB_ID: str(record["job_id"])})
        self._cluster.patch_json("Pod", pod.name, changes, pod.namespace)

    def _suspend(self, suspend: bool, record: LaunchRow, view: LaunchState) -> None:
        if view.job is None or bool(view.job["spec"].get("suspend")) == suspend:
            return
        meta = view.job["metadata"]
        log.info("launch %s: %s batch Job %s", record["_id"], "suspending" if suspend else "resuming", meta["name"])
        changes = one_pod_jobs.suspension(view.job, suspend)
        self._cluster.patch_json("BatchJob", meta["name"], changes, meta.get("namespace"))

    def _forget(self, record: LaunchRow) -> None:
        name, doc = record["_id"], record["doc"]
        for secret in {str(pod["secret"]) for pod in gang_launch.recorded_pods(record)} or {
            str(record.get("secret") or name)
        }:
            self._cluster.delete("Secret", secret, self._states.namespace(doc))
        self._store.delete(TABLE, name, {"version": record.get("version")})
        self._runs.forget(name)
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _emulated(self, doc: JobRow) -> bool:
        """True if the decided node has only emulated GPUs, or none that is known."""
        gpus = self._store.list("gpus", {"node": doc.get("node")})
        return not any(not gpu.get("emulated") for gpu in gpus)

    # playbooks, in threads of their own

    def _carry_out(self, verb: Verb, record: LaunchRow, cancelled: Cancelled) -> None:
        folder = self._folder / record["_id"]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            if verb == "launch":
                self._play_launch(record, folder, cancelled)
            else:
                namespace = self._states.namespace(record["doc"])
                kind = self._states.api_kind(namespace, record["_id"], self.observed())
                values = {"name_of_launch": record["_id"], "namespace": namespace, "kind": kind}
                self._play("remove.yml", folder, values, cancelled)
            self._unanswered.discard(record["_id"])
        except ReshapeError as error:
            unanswered = isinstance(error, ApiUnavailable) or not self._cluster.answers()
            (self._unanswered.add if unanswered else self._unanswered.discard)(record["_id"])
            raise
        finally:
            self._wake.set()

    def _play_launch(self, record: LaunchRow, folder: Path, cancelled: Cancelled) -> None:
        doc = record["doc"]
        secret, job = job_spec.objects(doc, self._settings, self._master_key, self._emulated(doc))
        if secret is not None:
            self._cluster.apply(secret)  # before the job, whose pod waits for it
        rendered = folder / "job.json"
        rendered.write_text(json.dumps(job), encoding="utf-8")
        self._play("launch.yml", folder, {"job": str(rendered)}, cancelled)
        kind = "Job" if self._settings.volcano else "BatchJob"
        namespace = self._states.namespace(doc)
        if not self._applied(record, cancelled):
            self._cluster.delete(kind, record["_id"], namespace)
            self._cluster.delete("Secret", record["_id"], namespace)
            return
        found = self._cluster.get(kind, record["_id"], namespace)
        if found is not None and secret is not None:  # for a gang each pod gets an Event of its own
            what = f"Launch {record['launch']} of job {record['job_id']} on node {doc.get('node')}."
            self.events.write(found, "Launched", what)

    def _applied(self, record: LaunchRow, cancelled: Cancelled) -> bool:
        """Write that the launch is applied, however long the store is away: it is no fault of the launch.

        False if its document is gone: the launch was removed meanwhile, so the caller must delete its objects.
        """
        while not cancelled():
            try:
                now = self._store.get(TABLE, record["_id"])
                if now is None:
                    return False
                self._store.update(TABLE, record["_id"], {"version": now.get("version")}, {"applied": True})
                return True
            except Conflict:
                continue
            except Transient:
                self._stopping.wait(POLL_S)
        raise Transient(f"launch {record['_id']} is no longer wanted")

    def _play(self, name: str, folder: Path, values: Mapping[str, str], cancelled: Cancelled) -> None:
        playbook.run(self._playbooks / name, folder, values, self._timeout_s, cancelled, FOR_ANSIBLE)


def _is_true(informer: Informer) -> bool:
    """Return whether its copy is that of the cluster, which may have no such kind."""
    return informer.in_step or informer.absent
