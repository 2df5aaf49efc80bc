"""Machines on which a job may have several pods, by the rules of `launcher/cluster/controllers/gang_launch.py`.

Rank 0 counts the steps and saves, and steps only while all of its gang run; the others wait for each other as
collective operations do. Who meets at other places than its peers is written to `violations`.
"""

from __future__ import annotations

import json

from coordinator.model.records import JobRecord
from coordinator.ports import Doc
from sidecar.protocol import StartCall
from tests.fakes.shims import Behaviour, Launch, Machines

Key = tuple[str, int]


class Gangs(Machines):
    def pod(self, job: str, member: int) -> Launch:
        """Of the newest launch."""
        newest = self.present(job)
        assert newest is not None
        return self.launches[_key(job, newest.number, member)]

    def _one(self, job: str, member: int) -> Launch | None:
        newest = self.present(job)
        return self.launches.get(_key(job, newest.number, member)) if newest else None

    def pods(self, launch: Launch) -> list[Launch]:
        """Of the same launch, in order."""
        here = [one for one in self.launches.values() if (one.job, one.number) == (launch.job, launch.number)]
        return sorted(here, key=lambda one: one.member or 0)

    # Platform

    def launch(self, doc: Doc) -> None:
        job = JobRecord(doc)
        if job.gpus_per_pod is None:
            return super().launch(doc)
        first = self.launches.get((job.id, job.launch))
        if first is not None and first.removal_asked:
            return None
        for member in range(job.members):
            self._want(_key(job.id, job.launch, member), doc)
        for pod in self.pods(first) if first else []:
            if (pod.member or 0) >= job.members and not pod.removal_asked:
                pod.removal_asked, pod.wanted_again = True, None
        return None

    def _want(self, key: Key, doc: Doc) -> None:
        old = self.launches.get(key)
        if old is not None and old.removal_asked and old.alive:
            old.wanted_again = doc
        elif old is None or old.removal_asked or (old.failure and not old.alive):
            self._launch(key, doc, self.of(str(doc["job_id"])))

    def _launch(self, key: Key, doc: Doc, behaviour: Behaviour) -> None:
        if not doc.get("gpus_per_pod"):
            return super()._launch(key, doc, behaviour)
        self.effects += 1
        self._pid += 10
        member, name = int(key[0].partition("#")[2] or 0), str(doc["job_id"])
        new = self.launches[key] = Launch(name, dict(doc), self._clock.now() + behaviour.launch_s, self._pid, member)
        if behaviour.launch_failures > 0:
            behaviour.launch_failures -= 1
            new.failure = "the disk is full"
        return None

    def failure(self, doc: Doc) -> str | None:
        found = [super(Gangs, self).failure(one) for one in self._each(doc)]
        return next((why for why in found if why), None)

    def remove(self, doc: Doc) -> None:
        for one in self._each(doc):
            super().remove(one)

    def gone(self, doc: Doc) -> bool:
        return all(super(Gangs, self).gone(one) for one in self._each(doc))

    def ended(self, doc: Doc) -> frozenset[int]:
        wanted = [pod for pod in map(self._find, self._each(doc)) if pod and (pod.member or 0) < JobRecord(doc).members]
        return frozenset(pod.member or 0 for pod in wanted if not pod.alive and not self.cut(pod))

    def _each(self, doc: Doc) -> list[Doc]:
        """One document for each pod that there is."""
        first = self.launches.get((str(doc["job_id"]), int(doc["launch"])))
        return [{**doc, "job_id": _key(p.job, p.number, p.member or 0)[0]} for p in self.pods(first)] if first else []

    # trainers

    def _spawn(self, shim: Launch, call: StartCall) -> None:
        shim.variables = call.env
        super()._spawn(shim, call)
        if shim.member is None:
            return
        config = json.loads(call.env["TF_CONFIG"])
        if (config["task"]["index"], len(call.gpu_ids)) != (shim.member, shim.doc["gpus_per_pod"]):
            self.violations.append(f"{shim.url} is started as {config['task']} on {call.gpu_ids}")
        for peer in self._peers(shim):
            if json.loads(peer.variables["TF_CONFIG"])["cluster"] != config["cluster"]:
                self.violations.append(f"{shim.url} and {peer.url} do not meet: {call.env} and {peer.variables}")

    def _peers(self, shim: Launch) -> list[Launch]:
        """Those of its generation that train, itself among them."""
        alike = [pod for pod in self.pods(shim) if pod.status.generation == shim.status.generation]
        return [pod for pod in alike if pod.alive and pod.trains]

    def _step(self, shim: Launch, first: float, until: float) -> None:
        if shim.member is None:
            return super()._step(shim, first, until)
        count = int(shim.variables["WORLD_SIZE"])
        if shim.member or len(self._peers(shim)) < count:
            return None
        given, shim.status.gpu_ids = shim.status.gpu_ids, shim.status.gpu_ids * count  # all of them count for the pace
        super()._step(shim, first, until)
        shim.status.gpu_ids = given
        return None

    def _train(self, shim: Launch) -> None:
        super()._train(shim)
        if shim.member is not None and self.of(shim.job).agrees and shim.status.trainer == "running":
            spawned, others = shim.status.spawn_at or 0.0, [one.status for one in self.pods(shim)]
            if any((one.exit_at or 0.0) > spawned and one.stop_asked and one.exit_code != 0 for one in others):
                self._exit(shim, self.of(shim.job).stop_code, saved=True)
        if shim.member and shim.trains and shim.status.trainer == "running":
            first = self.pods(shim)[0].status
            if (first.trainer, first.exit_code, first.generation) == ("exited", 0, shim.status.generation):
                self._exit(shim, 0)

    def _exit(self, shim: Launch, code: int, saved: bool = False, note: str = "", tail: str = "") -> None:
        super()._exit(shim, code, saved and not shim.member, note, tail)

    # what goes wrong

    def kill_pod(self, job: str, member: int) -> None:
        """It is gone, with all that ran in it."""
        if (shim := self._one(job, member)) is not None:
            self._release(shim)
            shim.alive = False

    def end_member(self, job: str, member: int, code: int) -> None:
        """Its trainer ends by itself."""
        shim = self._one(job, member)
        if shim is not None and shim.alive and shim.trains:
            self._exit(shim, code, saved=code == 0, tail="Traceback (most recent call last):\nout of memory")


def _key(job: str, number: int, member: int) -> Key:
    """The first pod's is that of a job with one."""
    return (f"{job}#{member}" if member else job), number
