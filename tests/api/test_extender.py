"""What Volcano's scheduler asks and what it is told (its plugin `extender`, 1.10).

`volcano/*.json` were recorded from Volcano 1.10's scheduler on a Kubernetes 1.34 cluster, without `managedFields`
and node images; those of the two evictions are put together of tasks recorded so. A PodGroup as Volcano 1.14 and newer
write it is made of a recorded one: what Go embeds with the tag `json:"metadata"` lies below that name.
"""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from coordinator.api.volcano_extender import VolcanoExtender
from coordinator.errors import Rejected
from coordinator.http.extender import LARGE, MOST_LARGE, ExtenderHandler
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from tests.api.caller import Caller
from tests.fakes.coordinator_api import Live

VERBS = ("jobEnqueueable", "predicate", "preemptable", "reclaimable", "queueOverused")
RECORDED = {verb: (Path(__file__).parent / "volcano" / f"{verb}.json").read_bytes() for verb in VERBS}
OWNER = json.loads(RECORDED["jobEnqueueable"])["job"]["PodGroup"]["ownerReferences"][0]["uid"]
MINE = {"namespace": "team-a", "name": "train-mnist", "uid": OWNER}
Doc = dict[str, Any]


def record(state: str, node: str | None = None, name: str = "team-a.train-mnist", **more: Any) -> JobRecord:
    doc = {"_id": "volcano-1", "job_id": name, "uid": "u", "state": state, "node": node, "volcano": MINE}
    return JobRecord({**doc, **more})


def ask(verb: str, *jobs: JobRecord, raw: bytes | None = None, queues: Doc | None = None) -> Doc:
    known = {job.id: job for job in jobs}
    answer = VolcanoExtender(known.get, lambda: queues or {}).answer(verb, RECORDED[verb] if raw is None else raw)
    decoded: Doc = json.loads(answer)
    return decoded


def changed(verb: str, change: Any) -> bytes:
    doc = json.loads(RECORDED[verb])
    change(doc)
    return json.dumps(doc).encode()


VOLCANO_JOB = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "train-mnist", "uid": OWNER}


def node_of(answer: Doc) -> str:
    """The node that the refusal of `predicate` names."""
    return str(answer["status"]).rpartition(" ")[2]


def test_a_pod_made_before_its_record_is_told_from_an_earlier_job_of_that_name() -> None:
    """Its annotation says `team-a.train-mnist`, which is another job."""

    def annotated(doc: Doc) -> None:
        doc["task"]["Pod"]["metadata"]["ownerReferences"] = [VOLCANO_JOB]
        doc["task"]["Pod"]["metadata"]["annotations"] = {"volcano-reshape.io/job-id": "team-a.train-mnist"}

    before = record(s.RUNNING, "before", volcano={**MINE, "uid": "an earlier one"})
    now = record(s.INITIALIZING, "decided", name=f"team-a.train-mnist.{OWNER[:8]}")
    assert node_of(ask("predicate", before, now, raw=changed("predicate", annotated))) == "decided"


def test_each_pod_of_a_gang_goes_where_its_gpus_are() -> None:
    def sent_to(member: int, **more: Any) -> str:
        raw = changed("predicate", lambda doc: doc["task"]["Pod"]["metadata"].update(
            name=f"train-mnist-trainer-{member}", ownerReferences=[VOLCANO_JOB],
        ))  # fmt: skip
        job = record(s.RUNNING, "of g0", gpus_per_pod=1, gpu_ids=["g0", "g1"], **more)
        nodes = {"g0": "of-g0", "g1": "of-g1", "g2": "of-g2"}
        return node_of(json.loads(VolcanoExtender({job.id: job}.get, dict, nodes.get).answer("predicate", raw)))

    assert [sent_to(member) for member in range(3)] == ["of-g0", "of-g1", "node"], "the third waits for its node"
    growing = {"kind": "reshape", "to": ["g0", "g1", "g2"]}
    assert sent_to(2, reshape=growing) == "of-g2"


# may it enter


METADATA = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "labels", "annotations",
    "ownerReferences", "managedFields",
)  # fmt: skip


def nested(doc: Doc) -> None:
    """The PodGroup as Volcano 1.14 and newer write it."""
    group = doc["job"]["PodGroup"]
    group["metadata"] = {name: group.pop(name) for name in METADATA if name in group}


def enqueueable(*jobs: JobRecord, change: Any = lambda group: None, queues: Doc | None = None) -> int:
    """The answer, which is the same for both shapes."""

    def newer(doc: Doc) -> None:
        change(doc["job"]["PodGroup"])
        nested(doc)

    old = changed("jobEnqueueable", lambda doc: change(doc["job"]["PodGroup"]))
    new = changed("jobEnqueueable", newer)
    assert b'"metadata": {"name": "train-mnist' in new
    status: list[int] = [ask("jobEnqueueable", *jobs, raw=raw, queues=queues)["status"] for raw in (old, new)]
    assert status[0] == status[1]
    return status[0]


@pytest.mark.parametrize("state", s.JOB_STATES)
def test_a_users_job_enters_once_it_is_decided_where_it_starts(state: str) -> None:
    assert enqueueable(record(state)) == (0 if state in s.LAUNCHED else -1)


def test_one_of_a_name_that_was_used_before_is_told_from_the_earlier_one() -> None:
    before = record(s.RUNNING, volcano={**MINE, "uid": "an earlier one"})
    assert enqueueable(before) == -1
    assert enqueueable(before, record(s.RUNNING, name=f"team-a.train-mnist.{OWNER[:8]}")) == 0


def test_one_that_asks_to_be_reshaped_waits_until_we_know_it() -> None:
    def plain(group: Doc) -> None:
        del group["annotations"]

    def whole(group: Doc) -> None:
        group["annotations"] = {"volcano-reshape.io/job": "{}"}

    def labelled(group: Doc) -> None:
        plain(group)
        group["labels"] = {"volcano-reshape.io/inject": "true"}

    assert (enqueueable(), enqueueable(change=whole), enqueueable(change=plain)) == (-1, -1, 0)
    assert enqueueable(change=labelled) == -1
    assert enqueueable(change=plain, queues={"default": {"inject": True}}) == -1
    assert enqueueable(change=plain, queues={"default": {"inject": False}, "other": {"inject": True}}) == 0


def test_a_users_job_that_copied_our_label_is_not_taken_for_one_that_our_launcher_made() -> None:
    def copied(group: Doc) -> None:
        group["labels"] = {"volcano-reshape.io/job": "one-abcdefgh"}

    assert enqueueable(change=copied) == -1
    assert enqueueable(record(s.RUNNING), change=copied) == 0


@pytest.mark.parametrize("kind", ["batch/v1", "training.example.org/v1", ""])
def test_a_job_of_another_kind_that_only_shares_the_word_is_left_to_volcano(kind: str) -> None:
    """Kubernetes' own Jobs in a queue of ours waited for ever: no record is ever made of them."""

    def of_another(group: Doc) -> None:
        group["ownerReferences"][0]["apiVersion"] = kind

    assert enqueueable(change=of_another, queues={"default": {"inject": True}}) == 0
    raw = changed("predicate", lambda doc: doc["task"]["Pod"]["metadata"].update(
        ownerReferences=[{**VOLCANO_JOB, "apiVersion": kind}], annotations={}
    ))  # fmt: skip
    assert ask("predicate", record(s.RUNNING, "elsewhere"), raw=raw) == {"status": "", "code": 0}


def hidden(doc: Doc) -> None:
    doc["job"]["PodGroup"] = {"about": doc["job"]["PodGroup"]}


def in_a_list(doc: Doc) -> None:
    doc["job"]["PodGroup"] = [doc["job"]["PodGroup"]]


@pytest.mark.parametrize("change", [hidden, in_a_list])
def test_a_pod_group_in_no_shape_that_we_read_is_held_if_it_is_ours_and_said_once(
    change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Let in, its pods would be bound before anything is decided, and nobody would know why."""
    extender = VolcanoExtender({}.get, dict)
    raw = changed("jobEnqueueable", change)
    with caplog.at_level(logging.WARNING):
        answers = [json.loads(extender.answer("jobEnqueueable", raw)) for _ in range(3)]
    assert answers == [{"status": -1}] * 3
    (said,) = caplog.messages
    assert "PodGroup is in no shape that this version reads" in said
    assert "running jobs keep training" in said


def test_a_pod_group_that_we_cannot_read_is_held_by_the_label_of_its_queue_and_else_let_in() -> None:
    def bare(doc: Doc) -> None:
        doc["job"]["PodGroup"] = {"about": {"name": "train-mnist"}}

    raw = changed("jobEnqueueable", bare)
    assert ask("jobEnqueueable", raw=raw, queues={"default": {"inject": True}}) == {"status": -1}
    assert ask("jobEnqueueable", raw=raw, queues={"default": {"inject": False}}) == {"status": 0}


def test_what_our_launcher_made_enters_and_so_does_what_no_volcano_job_owns() -> None:
    def made(group: Doc) -> None:
        group["labels"] = {"volcano-reshape.io/job": "one-abcdefgh"}
        group["ownerReferences"][0]["name"] = "one-abcdefgh-l3"

    def owned(group: Doc) -> None:
        group["ownerReferences"][0]["kind"] = "ReplicaSet"

    def nobody(group: Doc) -> None:
        del group["ownerReferences"]

    for change in (made, owned, nobody):
        assert enqueueable(change=change, queues={"default": {"inject": True}}) == 0


# where it goes


def test_a_pod_without_our_annotation_is_known_by_the_volcano_job_that_owns_it() -> None:
    def bare(doc: Doc) -> None:
        del doc["task"]["Pod"]["metadata"]["annotations"]

    answer = ask("predicate", record(s.RUNNING, "elsewhere"), raw=changed("predicate", bare))
    assert node_of(answer) == "elsewhere"


def test_predicate_permits_the_decided_node_and_refuses_others_with_a_reason() -> None:
    name = json.loads(RECORDED["predicate"])["node"]["Name"]
    assert ask("predicate") == {"status": "", "code": 0}
    assert ask("predicate", record(s.INITIALIZING, name)) == {"status": "", "code": 0}
    refused = ask("predicate", record(s.INITIALIZING, "elsewhere"))
    assert refused == {"status": "job team-a.train-mnist is to start on node elsewhere", "code": 3}
    assert "waits for the coordinator" in ask("predicate", record(s.SUBMITTED))["status"]


# who is evicted


def names(answer: Doc) -> list[str]:
    return [task["Name"] for task in answer["victims"]]


def test_a_job_of_ours_is_never_preempted() -> None:
    answer = ask("preemptable", record(s.RUNNING, "node-a"))
    assert (answer["status"], names(answer)) == (1, ["other-trainer-0"])


def test_who_is_left_as_a_victim_goes_back_as_it_came() -> None:
    evictees = json.loads(RECORDED["preemptable"])["evictees"]
    assert ask("preemptable", record(s.RUNNING, "node-a"))["victims"] == evictees[1:]


def test_a_queue_may_reclaim_from_us_but_not_in_the_middle_of_an_operation() -> None:
    assert ask("reclaimable", record(s.RUNNING, "node-a"))["status"] == 0
    busy = record(s.ADJUSTING, "node-a", reshape={"kind": "reshape", "to": []})
    assert names(ask("reclaimable", busy)) == ["other-trainer-0"]


@pytest.mark.parametrize("verb", ["preemptable", "reclaimable"])
def test_of_others_we_have_no_opinion(verb: str) -> None:
    assert ask(verb)["status"] == 0
    assert ask(verb, raw=b'{"evictor": null, "evictees": null}') == {"status": 0, "victims": []}


def test_no_queue_is_overused_because_of_us() -> None:
    assert ask("queueOverused") == {"overused": False}


# the address


@pytest.mark.parametrize("verb", VERBS)
def test_a_recorded_request_is_answered_without_a_token_in_what_volcano_reads(call: Caller, verb: str) -> None:
    call.headers = {}
    answer = call("POST", f"/v1/extender/{verb}", RECORDED[verb])
    assert answer.status == 200
    fields = {"jobEnqueueable": {"status"}, "predicate": {"status", "code"}}
    wanted = fields.get(verb, {"overused"} if verb == "queueOverused" else {"status", "victims"})
    assert set(answer.doc) == wanted


def test_one_that_does_not_act_says_so_and_volcano_goes_on_without_it(call: Caller, live: Live) -> None:
    live.coordinator.store_down = True  # so it does not act
    assert call("POST", "/v1/extender/jobEnqueueable", RECORDED["jobEnqueueable"]).status == 503


NESTED = b'{"a":' * 2000 + b"1" + b"}" * 2000


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"{}", b'{"job": 3}', b'{"job": null}', b"\xff\xfe", NESTED],
    ids=lambda raw: repr(raw)[:12],
)
def test_what_is_no_request_of_volcano_is_refused_with_a_sentence(raw: bytes) -> None:
    with pytest.raises(Rejected, match="is not what Volcano's extender plugin sends"):
        ask("jobEnqueueable", raw=raw)


@pytest.mark.parametrize("verb", ["onSessionOpen", "prioritize"])
def test_a_verb_that_is_not_ours_is_not_found(call: Caller, verb: str) -> None:
    """`prioritize` was one; where it is still configured Volcano goes on without an answer."""
    answer = call("POST", f"/v1/extender/{verb}", b"{}")
    assert answer.status == 404
    assert "jobEnqueueable" in answer.sentence


def test_a_request_of_many_megabytes_is_read_and_one_beyond_the_limit_is_not(call: Caller) -> None:
    def padded(size: int) -> bytes:
        return b'{"evictees": [{"about": "' + b"x" * size + b'"}]}'

    abstains = {"status": 0, "victims": []}
    assert call("POST", "/v1/extender/preemptable", padded(10 * 1024 * 1024)).doc == abstains
    try:
        assert call("POST", "/v1/extender/preemptable", padded(ExtenderHandler.body_limit)).status == 413
    except (ConnectionError, BrokenPipeError):
        pass  # cut off while it was still sending
    assert call("POST", "/v1/extender/queueOverused", b"{}").status == 200


def test_few_large_requests_are_taken_at_once_and_those_that_broke_off_are_forgotten(call: Caller, live: Live) -> None:
    head = f"POST /v1/extender/preemptable HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE + 1}\r\n\r\n".encode()
    opened = [socket.create_connection(("127.0.0.1", live.port)) for _ in range(MOST_LARGE)]
    for one in opened:
        one.sendall(head)
    large = b'{"evictees": [{"about": "' + b"x" * LARGE + b'"}]}'
    while len(live.app.settings["large"]) < MOST_LARGE:
        pass
    assert call("POST", "/v1/extender/queueOverused", b"{}").status == 200
    try:
        assert call("POST", "/v1/extender/preemptable", large).status == 503
    except (ConnectionError, BrokenPipeError):
        pass
    for one in opened:
        one.close()
    while live.app.settings["large"]:
        pass
    assert call("POST", "/v1/extender/preemptable", large).status == 200
