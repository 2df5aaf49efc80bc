"""Tenants of a cluster over HTTP: who is let in, what each sees and changes. The API server's answers are given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import pytest

from coordinator.http import base
from coordinator.http.cluster_tenants import AUDIENCE, LASTS_S, ClusterTenants, ShortMemory, audiences
from coordinator.model import states as s
from coordinator.model.owner_names import LONGEST, OWNER, namespace_of_user, owner_of_user
from launcher.cluster.reviews import KubernetesReviews, RefusedToken, ResourceRight, ReviewedUser
from tests.api.browser import Browser
from tests.api.caller import Answer, Caller
from tests.api.test_dashboard_live import following
from tests.fakes.cluster_reviews import VERBS, ClusterReviews, CreatedReviews, jwt
from tests.fakes.coordinator_api import TOKEN, Live, serve
from tests.fakes.shims import Behaviour
from tests.fakes.world import JOB_TYPE, World
from tests.patience import eventually

ANN = "system:serviceaccount:team-a:trainer"
BEN = "ben@example.org"
ADA = "ada"
JOB: dict[str, Any] = {
    "command": ["python", "secret-plan.py"],
    "optional_num_gpus": [1, 2],
    "job_type": JOB_TYPE,
    "elastic": True,
    "iterations": 4_000,
}
CHANGES = {
    "cancel": ("DELETE", "/v1/jobs/one", None),
    "reshape": ("POST", "/v1/jobs/one/reshape", {"gpus": 1}),
    "suspend": ("POST", "/v1/jobs/one/suspend", None),
    "resume": ("POST", "/v1/jobs/one/resume", None),
    "priority": ("POST", "/v1/jobs/one/priority", {"priority": 1}),
    "remove": ("POST", "/v1/jobs/one/remove", None),
    "rerun": ("POST", "/v1/jobs/one/rerun", None),
    "output": ("GET", "/v1/jobs/one/logs", None),
}
OF_ALL = {
    "snapshot": ("GET", "/v1/snapshot", None),
    "journal": ("GET", "/v1/journal", None),
    "profiles": ("GET", "/v1/profiles/overheads", None),
    "drain": ("POST", "/v1/nodes/node-a/drain", None),
    "planned drain": ("POST", "/v1/nodes/node-a/drain", {"until": 9e9}),
    "shares": ("POST", "/v1/shares", {"text": ""}),
}


@dataclass
class Cluster:
    """Ann's job trains in team-a; Ben has rights in team-b alone."""

    world: World
    reviews: ClusterReviews
    live: Live
    time: list[float]

    def call(self, token: str, method: str, path: str, body: Any = None) -> Answer:
        return Caller(self.live, {"Authorization": f"Bearer {token}"})(method, path, body)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    reviews = ClusterReviews(
        users={"ann": ANN, "ben": BEN, "ada": ADA},
        verbs={(ANN, "team-a"): VERBS, (BEN, "team-b"): VERBS},
        operators={ADA},
    )
    world = World()
    time = [100.0]
    world.machines.behaviour["one"] = Behaviour(iterations=4_000)
    tenants = ClusterTenants(
        reviews,
        others_seen=False,
        default_namespace="default",
        now=lambda: time[0],
    )
    with serve(world.api, tenants=tenants) as live:
        found = Cluster(world, reviews, live, time)
        assert found.call("ann", "POST", "/v1/jobs", {"job_id": "one", **JOB}).status == 201
        world.run(lambda w: w.states().get("one") == s.RUNNING)
        yield found


def test_a_job_belongs_to_whom_the_token_is_of_and_runs_in_that_accounts_namespace(cluster: Cluster) -> None:
    doc = cluster.world.job("one").doc
    assert (doc["owner"], doc["namespace"]) == (ANN, "team-a")
    forged = cluster.call("ann", "POST", "/v1/jobs", {"job_id": "two", **JOB, "owner": BEN})
    assert (forged.status, forged.sentence) == (
        403,
        f"owner is {ANN}, who submits the job: leave it out, or write that.",
    )


def test_a_job_is_not_submitted_where_its_user_has_no_right(cluster: Cluster) -> None:
    there = cluster.call("ben", "POST", "/v1/jobs", {"job_id": "two", **JOB, "namespace": "team-a"})
    assert there.status == 403
    assert "may not create jobs.batch.volcano.sh in namespace team-a" in there.sentence
    nowhere = cluster.call("ben", "POST", "/v1/jobs", {"job_id": "two", **JOB})
    assert (nowhere.status, nowhere.sentence[:21]) == (400, "Say in which namespac")
    assert cluster.call("ben", "POST", "/v1/jobs", {"job_id": "two", **JOB, "namespace": "team-b"}).status == 201
    assert cluster.world.users.list("jobs", {"job_id": "two"})[0]["owner"] == BEN


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_tenants_token_changes_nothing_of_another(cluster: Cluster, change: str) -> None:
    before = cluster.world.job("one").doc
    answer = cluster.call("ben", *CHANGES[change])
    assert answer.status == 404
    assert "There is no job 'one'" in answer.sentence
    assert cluster.world.job("one").doc == before


@pytest.mark.parametrize("change", ["cancel", "reshape", "suspend", "output"])
def test_who_may_read_a_namespace_changes_nothing_there(cluster: Cluster, change: str) -> None:
    cluster.reviews.verbs[BEN, "team-a"] = {"get"} if change != "output" else {"list"}
    answer = cluster.call("ben", *CHANGES[change])
    assert answer.status == (403 if change != "output" else 404)
    assert cluster.world.job("one").doc.get("cancel") is None


@pytest.mark.parametrize("what", sorted(OF_ALL))
def test_what_concerns_all_is_for_operators(cluster: Cluster, what: str) -> None:
    refused = cluster.call("ann", *OF_ALL[what])
    assert refused.status == 403
    assert "reshape-operator" in refused.sentence
    assert cluster.call("ada", *OF_ALL[what]).status != 403
    assert cluster.call(TOKEN, *OF_ALL[what]).status != 403


def test_a_reservation_needs_a_right_of_its_own(cluster: Cluster) -> None:
    asked = {"gpus": 1, "until": cluster.world.clock.wall() + 600}
    refused = cluster.call("ann", "POST", "/v1/reservations", asked)
    assert (refused.status, "ClusterRole reshape-reserver" in refused.sentence) == (403, True)
    assert cluster.call("ann", "POST", "/v1/reservations", {**asked, "user": ADA}).status == 403
    assert cluster.call(TOKEN, "POST", "/v1/reservations", asked).status == 201


def test_a_reservation_is_for_whom_the_token_is_of_whatever_the_client_says(cluster: Cluster) -> None:
    ada = Caller(cluster.live, {"Authorization": "Bearer ada", "X-Reshape-User": "root"})
    made = ada("POST", "/v1/reservations", {"gpus": 1, "until": cluster.world.clock.wall() + 600})
    assert (made.status, made.doc["user"], made.doc["by"]) == (201, ADA, ADA)


def test_of_others_a_tenant_sees_counts(cluster: Cluster) -> None:
    assert cluster.call("ben", "GET", "/v1/jobs").doc["jobs"] == []
    for path in ("/v1/gpus", "/v1/nodes", "/v1/decisions", "/v1/shares", "/v1/usage"):
        answer = cluster.call("ben", "GET", path)
        assert answer.status == 200
        assert b"one" not in answer.raw.replace(b"none", b"") and ANN.encode() not in answer.raw, answer.raw
    busy = [gpu for gpu in cluster.call("ben", "GET", "/v1/gpus").doc["gpus"] if gpu["state"] != "idle"]
    assert busy, "how many GPUs are in use is no secret"
    (own,) = cluster.call("ann", "GET", "/v1/jobs").doc["jobs"]
    assert (own["job_id"], own["command"]) == ("one", JOB["command"])
    assert cluster.call("ada", "GET", "/v1/jobs").doc["jobs"][0]["owner"] == ANN


def test_events_of_other_namespaces_are_hidden(cluster: Cluster) -> None:
    path = "/v1/events?after=0&follow=false"
    assert b'"one"' in cluster.call("ann", "GET", path).raw
    hidden = cluster.call("ben", "GET", path).raw
    assert b'"hidden"' in hidden
    assert b'"one"' not in hidden


@pytest.mark.parametrize(
    ("token", "why", "said"),
    [
        ("old", "[invalid bearer token, service account token has expired]", "This token has expired"),
        ("gone", "[invalid bearer token, Token has been invalidated]", "This token is no longer valid"),
        ("left", '[invalid bearer token, serviceaccounts "trainer" not found]', "This token is no longer valid"),
        ("foreign", "invalid bearer token", "This cluster does not know this token"),
    ],
)
def test_a_token_that_is_not_accepted_is_answered_with_the_reason(
    cluster: Cluster, token: str, why: str, said: str
) -> None:
    cluster.reviews.refused[token] = why
    answers = [cluster.call(token, "GET", "/v1/jobs") for _ in range(3)]
    assert {answer.status for answer in answers} == {401}
    assert all(said in answer.sentence and "kubectl create token" in answer.sentence for answer in answers)
    assert cluster.reviews.asked.count(("token", token)) == 1, "a refusal is kept for a while, too"


def test_connections_of_tenants_are_told_apart(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(base, "note_who_asks", lambda settings, connection, who: asked.append(who))
    for token in ("ann", "ben"):
        assert cluster.call(token, "GET", "/v1/jobs").status == 200
    assert asked == [f"user {ANN}", f"user {BEN}"]


def test_who_guesses_costs_the_api_server_little(cluster: Cluster) -> None:
    answers = [cluster.call(f"guess-{number}", "GET", "/v1/jobs").status for number in range(40)]
    assert set(answers[20:]) == {429}
    guesses = [asked for asked in cluster.reviews.asked if asked[0] == "token" and asked[1].startswith("guess")]
    assert len(guesses) <= 21
    assert cluster.call("ann", "GET", "/v1/jobs").status == 200, "who is known is served meanwhile"
    cluster.time[0] += LASTS_S + 1
    assert cluster.call("ann", "GET", "/v1/jobs").status == 200, "also once it must be asked again who that is"
    assert cluster.call(TOKEN, "GET", "/v1/jobs").status == 200


# the dashboard


def logged_in(cluster: Cluster, token: str) -> Browser:
    """A browser that the link of a token's user has let in."""
    browser = Browser(cluster.live)
    assert browser.get(cluster.call(token, "POST", "/v1/logins").doc["path"]).status == 200
    return browser


def test_a_tenant_sees_and_changes_own_jobs_alone_in_the_dashboard(cluster: Cluster) -> None:
    ann, ben = (logged_in(cluster, token) for token in ("ann", "ben"))
    assert b"/jobs/one/cancel" in ann.get("/jobs/one").raw
    for path in ("/", "/jobs", "/jobs?show=ended&named=on", "/timeline", "/decisions", "/what-if", "/submit"):
        page = ben.get(path)
        assert page.status == 200, path
        assert b"/jobs/one" not in page.raw and ANN.encode() not in page.raw, path
    for path in ("/jobs/one", "/jobs/one/log", "/live?of=/jobs/one"):
        assert ben.get(path).status == 404, path
    for action in ("cancel", "reshape", "suspend", "resume", "rerun"):
        assert ben.post(f"/jobs/one/{action}", {"csrf": ben.proof}).status == 404, action
    for form in ("/drain", "/what-if"):
        assert ben.post(form, {"csrf": ben.proof, "node": "n1", "drained": "yes"}).status == 403, form
    assert not cluster.world.job("one").cancel
    submitted = {"csrf": ben.proof, "command": "true", "gpus": "1", "name": "two"}
    assert ben.post("/submit", {**submitted, "namespace": "team-a"}).status == 403
    assert ben.post("/submit", {**submitted, "namespace": "team-b"}).status == 303
    assert cluster.world.users.list("jobs", {"job_id": "two"})[0]["owner"] == BEN
    assert ann.post("/jobs/one/suspend", {"csrf": ben.proof}).status == 403, "the proof is of another session"
    assert ann.post("/jobs/one/cancel", {"csrf": ann.proof}).status == 303
    assert cluster.world.job("one").cancel


def test_an_operator_of_the_cluster_sees_all_in_the_dashboard(cluster: Cluster) -> None:
    ada = logged_in(cluster, "ada")
    assert b"/jobs/one" in ada.get("/jobs").raw
    assert ada.post("/drain", {"csrf": ada.proof, "node": "n1", "drained": "yes"}).status == 303
    cluster.reviews.operators.clear()
    cluster.time[0] += LASTS_S + 1
    assert b"/jobs/one" not in ada.get("/jobs").raw, "a right that was taken away ends here, too"


def test_a_session_ends_with_the_token_that_it_began_with(cluster: Cluster) -> None:
    ann = logged_in(cluster, "ann")
    proof = ann.proof
    del cluster.reviews.users["ann"]
    assert ann.get("/jobs/one").status == 200
    cluster.time[0] += LASTS_S + 1
    for path in ("/", "/jobs/one", "/live?of=/jobs/one"):
        assert ann.get(path).status == 401, path
    assert ann.post("/jobs/one/cancel", {"csrf": proof}).status == 401
    assert not cluster.world.job("one").cancel


def test_a_browser_is_let_in_by_a_pasted_token_and_by_no_forged_one(cluster: Cluster) -> None:
    ann = Browser(cluster.live)
    assert b'name="token"' in ann.get("/").raw
    for token in ("forged", "", "x" * 20_000, TOKEN[:-1]):
        assert ann.post("/login", {"token": token}).status == 401, token[:10]
    assert ann.post("/login", {"token": "ann"}, Origin="http://elsewhere.example").status == 403
    assert ann.get("/").status == 401
    assert ann.post("/login", {"token": " ann "}, Origin=cluster.live.url).status == 200
    assert b"/jobs/one" in ann.get("/jobs").raw
    assert ann.post("/logout", {"csrf": ann.proof}).status == 200
    assert ann.get("/").status == 401


def test_a_page_that_is_followed_is_shared_with_no_other_tenant(cluster: Cluster) -> None:
    with ExitStack() as opened:
        told = [
            opened.enter_context(following(cluster.live, logged_in(cluster, token), "/jobs"))
            for token in ("ann", "ben")
        ]
        eventually(lambda: all(one.parts for one in told), "both pages are sent")
        assert ["/jobs/one" in json.dumps(one.parts) for one in told] == [True, False]


def test_answers_are_kept_for_seconds_and_a_right_that_was_taken_away_ends(cluster: Cluster) -> None:
    asked = len(cluster.reviews.asked)
    assert cluster.call("ann", "GET", "/v1/jobs").status == 200
    first = len(cluster.reviews.asked)
    assert cluster.call("ann", "GET", "/v1/jobs").status == 200
    assert len(cluster.reviews.asked) == first <= asked + 3
    cluster.reviews.verbs.clear()
    cluster.time[0] += LASTS_S + 1
    assert cluster.call("ann", "DELETE", "/v1/jobs/one").status == 404
    del cluster.reviews.users["ann"]
    cluster.time[0] += LASTS_S + 1
    assert cluster.call("ann", "GET", "/v1/jobs").status == 401


def test_without_an_api_server_nobody_gets_in_but_the_operator(cluster: Cluster) -> None:
    cluster.time[0] += LASTS_S + 1
    cluster.reviews.away = True
    assert cluster.call("ann", "GET", "/v1/jobs").status == 503
    assert cluster.call(TOKEN, "GET", "/v1/jobs").status == 200


def test_a_token_for_us_alone_is_reviewed_as_such_and_others_as_those_of_the_api_server(cluster: Cluster) -> None:
    ours = jwt(AUDIENCE)
    theirs = jwt("https://kubernetes.default.svc")
    cluster.reviews.users |= {ours: ANN, theirs: ANN}
    assert cluster.call(ours, "GET", "/v1/jobs").status == cluster.call(theirs, "GET", "/v1/jobs").status == 200
    assert cluster.reviews.audiences[-2:] == [AUDIENCE, None]
    assert audiences("no.jwt.!") == audiences("e30.W10.x") == audiences("plain") == ()


def test_memory_is_bounded() -> None:
    memory: ShortMemory[int, int] = ShortMemory(lambda: 0.0, most=3)
    for number in range(100):
        memory.keep(number, number)
    assert (len(memory), memory.get(99), memory.get(0)) == (3, 99, None)


def test_the_api_server_is_asked_for_user_groups_and_namespace() -> None:
    server = CreatedReviews(
        {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": ANN, "groups": ["g"]}}
    )
    user = KubernetesReviews(server).user_of("t", AUDIENCE)
    assert user == ReviewedUser(ANN, "", ("g",))
    assert server.created[0]["spec"] == {"token": "t", "audiences": [AUDIENCE]}
    server.status = {"allowed": True}
    assert KubernetesReviews(server).allows(cast(ReviewedUser, user), ResourceRight("get", "", "pods", "log"), "team-a")
    attributes = server.created[1]["spec"]["resourceAttributes"]
    assert attributes == {"verb": "get", "group": "", "resource": "pods", "subresource": "log", "namespace": "team-a"}
    assert (server.created[1]["spec"]["user"], server.created[1]["spec"]["groups"]) == (ANN, ["g"])
    server.status = {"allowed": True, "denied": True}
    assert not KubernetesReviews(server).allows(cast(ReviewedUser, user), ResourceRight("get", "", "pods"), "team-a")


@pytest.mark.parametrize("status", [{}, {"authenticated": False, "error": "x"}, {"authenticated": True, "user": {}}])
def test_what_is_not_known_is_refused(status: dict[str, Any]) -> None:
    assert isinstance(KubernetesReviews(CreatedReviews(status)).user_of("t", None), RefusedToken)


def test_a_token_that_is_not_for_us_is_refused_where_the_server_ignores_audiences() -> None:
    server = CreatedReviews({"authenticated": True, "user": {"username": ANN}})
    assert isinstance(KubernetesReviews(server).user_of("t", AUDIENCE), RefusedToken)


USERS = [ANN, BEN, "kubernetes-admin", "https://issuer.example/#12345", "oidc:ada", "system:node:a", "a" * 253]
ODD = ["Ada Lovelace", "ada~x", "-x", "", "ä", "a" * 254, "CN=ada,O=lab", "x\ny", "_Ada_Lovelace~" + "0" * 16]


@pytest.mark.parametrize("user", USERS)
def test_an_owner_has_the_users_name(user: str) -> None:
    assert owner_of_user(user) == user


def test_odd_names_get_owners_of_their_own_that_no_other_user_can_have() -> None:
    owners = [owner_of_user(user) for user in ODD]
    assert len(set(owners)) == len(ODD)
    assert all(OWNER.fullmatch(owner) and len(owner) <= LONGEST and "~" in owner for owner in owners)
    assert not set(owners) & set(map(owner_of_user, [*USERS, *owners])), "a user who is called so gets another owner"


def test_only_service_accounts_have_a_namespace() -> None:
    assert [namespace_of_user(user) for user in (ANN, BEN, "system:serviceaccount:a", "x:serviceaccount:a:b")] == [
        "team-a",
        "",
        "",
        "",
    ]
