"""Two teams on one cluster: their tokens, what each may do, whose jobs are, and what Volcano's queues give them.

Each team has a namespace and a service account of its own. Nothing of identity is played: tokens are the API server's.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from reshape.client import Client, CoordinatorRefused
from tests.cluster import steps_job
from tests.cluster.bed_kubectl import Cluster, Object, until
from tests.cluster.bed_processes import BedError
from tests.cluster.bed_report import Report
from tests.cluster.installed import SYSTEM, Installed, answered
from tests.cluster.plays import ENDLESS, identity, in_order

Doc = dict[str, Any]

TEAMS = ("team-a", "team-b")
ACCOUNT = "trainer"
GOLD = "gold"
SILVER = "silver"
AUDIENCE = "volcano-reshape"
LAUNCHER = f"system:serviceaccount:{SYSTEM}:reshape-launcher"
CHANGES: dict[str, Callable[[Client, str], Any]] = {
    "cancel": lambda client, job: client.cancel(job),
    "reshape": lambda client, job: client.reshape(job, 1),
    "suspend": lambda client, job: client.suspend(job),
    "resume": lambda client, job: client.resume(job),
    "remove": lambda client, job: client.remove(job),
    "rerun": lambda client, job: client.rerun(job),
    "logs": lambda client, job: client.logs(job, 0),
    "read": lambda client, job: client.job(job),
}


def account(team: str) -> str:
    return f"system:serviceaccount:{team}:{ACCOUNT}"


def queue(name: str, **spec: Any) -> Doc:
    labels = {"volcano-reshape.io/inject": "true"}
    about = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name, "labels": labels},
    }
    return {**about, "spec": {"weight": 1, "reclaimable": True, **spec}}


def gpus(count: int) -> dict[str, str]:
    return {"nvidia.com/gpu": str(count)}


class Teams:
    """Both teams, with tokens of an hour."""

    def __init__(self, installed: Installed) -> None:
        self.on = installed
        self.cluster = installed.cluster
        self.made: list[str] = []
        for team in TEAMS:
            self.cluster.apply(list(_objects(team, installed.shared)))
            self.cluster.wait("serviceaccount", ACCOUNT, bool, team)
        self.tokens = {team: self.token(team, "--audience", AUDIENCE) for team in TEAMS}

    def token(self, team: str, *options: str) -> str:
        return self.cluster.kubectl("create", "token", ACCOUNT, "-n", team, *options).strip()

    def client(self, team: str, token: str = "") -> Client:
        return Client(self.on.client.url, token or self.tokens[team])

    def submit(self, team: str, name: str, counts: list[int], **more: Any) -> str:
        """A job by the team's own token. Its id, which no other run has had."""
        doc = steps_job.record(
            f"{name}-{uuid.uuid4().hex[:6]}", ENDLESS, counts, self.on.shared, namespace=team, **more
        )
        sent = {field: value for field, value in doc.items() if field != "_id"}
        self.made.append(str(self.client(team).submit(sent).id))
        return self.made[-1]


def _objects(team: str, shared: Path) -> Iterator[Doc]:
    about = {"namespace": team}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, **about}}
    code = next(each for each in steps_job.objects(shared) if each["kind"] == "ConfigMap")
    yield {**code, "metadata": {"name": code["metadata"]["name"], **about}}
    yield {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reshape-tenants", **about},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reshape-tenant"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": team}],
    }


@pytest.fixture(scope="module")
def _teams(installed: Installed) -> Iterator[Teams]:
    found = Teams(installed)
    installed.cluster.apply([queue(GOLD, capability=gpus(2), deserved=gpus(2)), queue(SILVER)])
    answered("both queues give rights", lambda: rights(found, GOLD) == ("Volcano", 2, 2) and rights(found, SILVER)[0])
    yield found
    for name in (GOLD, SILVER):
        installed.cluster.delete("queue.scheduling.volcano.sh", name)
    for team in TEAMS:
        installed.cluster.delete("namespace", team, "default", "--wait=false")


@pytest.fixture
def teams(_teams: Teams) -> Iterator[Teams]:
    """Both teams; what they submitted is ended afterwards."""
    yield _teams
    print(_teams.on.words("coordinator"), _teams.on.words("launcher"))
    _teams.on.end(*_teams.made)
    _teams.made.clear()


def rights(teams: Teams, name: str) -> tuple[str, int, int | None]:
    rows = {one["queue"]: one for one in teams.on.client.shares()["queues"]}
    return rows[name]["from"], rows[name]["guaranteed"], rows[name]["limit"]


def refusal(call: Callable[[], Any]) -> CoordinatorRefused:
    with pytest.raises(CoordinatorRefused) as refused:
        call()
    return refused.value


# who calls, and what that is good for


def test_a_tenants_token_changes_nothing_of_another(teams: Teams, report: Report) -> None:
    job_id = teams.submit("team-a", "hers", [1], queue=SILVER, node="node-a")
    teams.on.until_on(job_id, 1)
    with report.scenario("a tenant's token against another's job") as figures:
        before = teams.on.job(job_id)
        theirs = teams.client("team-b")
        assert before["owner"] == account("team-a")
        for what, call in CHANGES.items():
            assert refusal(lambda call=call: call(theirs, job_id)).status == 404, what
        assert theirs.jobs() == []
        assert refusal(lambda: theirs.drain("node-a")).status == 403
        assert refusal(lambda: theirs.set_shares("")).status == 403
        in_team_a = refusal(
            lambda: teams.client("team-b").submit({"namespace": "team-a", "command": ["true"], "num_gpus": 1})
        )
        assert (in_team_a.status, "create jobs.batch.volcano.sh in namespace team-a" in str(in_team_a)) == (403, True)
        after = teams.on.job(job_id)
        assert (after["state"], after["num_gpus"], after["launch"]) == ("running", 1, before["launch"])
        own = teams.client("team-a")
        assert [one["job_id"] for one in own.jobs()] == [job_id]
        answered("its own account reads its output", lambda: b"step=" in own.logs(job_id, 0)[0])
        own.cancel(job_id)
        teams.on.until(job_id, "cancelled")
        figures["calls"] = len(CHANGES) + 3


def test_a_user_of_the_cluster_with_a_role_is_an_operator(teams: Teams) -> None:
    admin = json.loads(Path(teams.cluster.kubeconfig).read_text())["users"][0]["user"]["token"]
    client = teams.client("team-a", admin)
    assert client.shares()["queues"]
    assert refusal(lambda: client.cancel("no-such-job")).status == 404
    for drained in (client.drain, client.undrain):
        assert drained("node-b")["node"] == "node-b"


def test_a_tenant_reserves_for_its_own_jobs_once_it_has_the_right(teams: Teams, report: Report) -> None:
    own = teams.client("team-a")
    until_s = time.time() + 600
    refused = refusal(lambda: own.reserve(1, until_s))
    assert (refused.status, "ClusterRole reshape-reserver" in str(refused)) == (403, True)
    teams.cluster.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "reshape-reservers"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reshape-reserver"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "team-a"}],
        }
    )
    try:
        with report.scenario("a tenant reserves a GPU") as figures:
            made = until("its right is known", lambda: _reserved(own, until_s), 60)
            assert made["user"] == account("team-a")
            other = teams.client("team-b")
            assert refusal(lambda: other.unreserve(made["reservation_id"])).status == 403
            assert refusal(lambda: other.reserve(1, until_s)).status == 403
            (seen,) = other.reservations()
            assert (seen["reservation_id"], seen["user"]) == (made["reservation_id"], None)
            assert own.unreserve(made["reservation_id"])["gpus"] == 1
            figures["calls"] = 6
    finally:
        teams.cluster.delete("clusterrolebinding", "reshape-reservers")


def _reserved(client: Client, until_s: float) -> Doc | None:
    try:
        return client.reserve(1, until_s)
    except CoordinatorRefused as refused:
        if refused.status != 403:
            raise
        return None


def test_a_token_for_the_api_server_is_taken_too(teams: Teams) -> None:
    assert teams.client("team-a", teams.token("team-a")).jobs() == []


def jwt(claims: Doc, key: rsa.RSAPrivateKey, header: Doc) -> str:
    def part(doc: Doc) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(doc).encode()).rstrip(b"=")

    signed = part(header) + b"." + part(claims)
    signature = base64.urlsafe_b64encode(key.sign(signed, padding.PKCS1v15(), hashes.SHA256())).rstrip(b"=")
    return (signed + b"." + signature).decode()


def opened(token: str, part: int) -> Doc:
    text = token.split(".")[part]
    found: Doc = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


def test_a_token_that_is_not_good_any_more_or_of_elsewhere_is_told_so(teams: Teams, report: Report) -> None:
    token = teams.tokens["team-a"]
    header = opened(token, 0)
    claims = opened(token, 1)
    with report.scenario("tokens that are refused") as figures:
        past = {"iat": int(time.time()) - 7200, "nbf": int(time.time()) - 7200, "exp": int(time.time()) - 3600}
        own_key = serialization.load_pem_private_key(_signing_key(teams.on).read_bytes(), None)
        assert isinstance(own_key, rsa.RSAPrivateKey)
        stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        refused = {
            "expired": jwt({**claims, **past}, own_key, header),
            "of another cluster": jwt(claims, stranger, header),
            "for somebody else": teams.token("team-a", "--audience", "somebody-else"),
            "no token": "no-token",
        }
        good = jwt(claims, own_key, header)
        assert teams.client("team-a", good).jobs() == [], "made in the same way, but for its time"
        said = {what: refusal(lambda bad=bad: teams.client("team-a", bad).jobs()) for what, bad in refused.items()}
        assert {one.status for one in said.values()} == {401}
        assert "This token has expired" in str(said["expired"]), said["expired"]
        assert "kubectl create token" in str(said["expired"])
        assert "does not know this token" in str(said["of another cluster"])
        figures |= {what: str(one) for what, one in said.items()}


def test_a_token_ends_with_what_it_is_bound_to(teams: Teams) -> None:
    teams.cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "leaves", "namespace": "team-a"}}
    )
    teams.cluster.wait("serviceaccount", "leaves", bool, "team-a")
    token = teams.cluster.kubectl("create", "token", "leaves", "-n", "team-a", "--audience", AUDIENCE).strip()
    assert teams.client("team-a", token).jobs() == []
    teams.cluster.delete("serviceaccount", "leaves", "team-a")

    def ended() -> bool:
        try:
            teams.client("team-a", token).jobs()
        except CoordinatorRefused as refused:
            return refused.status == 401
        return False

    until("the token of an account that is gone ends", ended, 40)


def _signing_key(installed: Installed) -> Path:
    (found,) = (installed.bed.folder / "pki").glob("service-accounts*")
    return found


def test_a_tenant_sees_its_own_jobs_alone_in_the_dashboard(teams: Teams) -> None:
    job_id = teams.submit("team-a", "shown", [1], queue=SILVER, node="node-a")
    teams.on.until_on(job_id, 1)
    pages = {}
    for team in TEAMS:
        link = urlsplit(teams.client(team).login_link())
        connection = http.client.HTTPConnection(str(link.hostname), link.port or 80, timeout=60)
        connection.request("GET", f"{link.path}?{link.query}")
        answer = connection.getresponse()
        answer.read()
        cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
        connection.request("GET", "/jobs", headers={"Cookie": cookie})
        pages[team] = connection.getresponse().read().decode()
        connection.close()
    assert [job_id in pages[team] for team in TEAMS] == [True, False]
    assert account("team-a") not in pages["team-b"]


# whose a Volcano Job is


@pytest.mark.parametrize("forged", [False, True])
def test_a_volcano_job_belongs_to_who_made_it(teams: Teams, forged: bool) -> None:
    name = f"mine-{uuid.uuid4().hex[:6]}"
    made = steps_job.volcano(name, ENDLESS, [1], teams.on.shared, queue=SILVER)
    made["metadata"]["namespace"] = "team-a"
    made["spec"]["priorityClassName"] = "urgent"
    teams.cluster.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 500}
    )
    if forged:
        made["metadata"]["annotations"] |= {
            "volcano-reshape.io/owner": account("team-b"),
            "volcano-reshape.io/owner-proof": "0" * 64,
        }
    teams.made.append(f"team-a.{name}")
    teams.cluster.apply(made, f"--as={account('team-a')}")
    try:
        answered("its job is known", lambda: teams.on.job(f"team-a.{name}"))
        with teams.on.table("jobs") as jobs:
            doc = jobs.find_one({"job_id": f"team-a.{name}"})
        assert (doc["owner"], doc["priority"]) == (account("team-a"), 500)
        noted = teams.cluster.get("vcjob", name, "team-a") or {}
        assert noted["metadata"]["annotations"]["volcano-reshape.io/owner"] == account("team-a")
        assert [one["job_id"] for one in teams.client("team-a").jobs()] == [f"team-a.{name}"]
        assert teams.client("team-b").jobs() == []
    finally:
        teams.cluster.delete("vcjob", name, "team-a")


def test_a_volcano_job_whose_fields_name_an_owner_is_refused(teams: Teams) -> None:
    name = f"claims-{uuid.uuid4().hex[:6]}"
    made = steps_job.volcano(name, ENDLESS, [1], teams.on.shared, queue=SILVER, owner=account("team-b"))
    made["metadata"]["namespace"] = "team-a"
    teams.made.append(f"team-a.{name}")
    teams.cluster.apply(made, f"--as={account('team-a')}")
    try:
        until(
            "it is refused with a sentence",
            lambda: any("cannot set owner" in one for one in teams.cluster.events(name, "team-a")),
            60,
        )
        assert refusal(lambda: teams.on.job(f"team-a.{name}")).status == 404
    finally:
        teams.cluster.delete("vcjob", name, "team-a")


# what queues give


def test_a_queues_capability_holds_also_in_growth_and_when_it_is_raised_the_job_grows(
    teams: Teams, report: Report
) -> None:
    with report.scenario("a queue's capability") as figures:
        job_id = teams.submit("team-a", "capped", [1, 2, 4], queue=GOLD, node="node-a")
        teams.on.until_on(job_id, 2)
        other = teams.submit("team-a", "second", [1], queue=GOLD, node="node-b", elastic=False)
        limit = "queue gold has 2 of at most 2 GPUs"

        def shared_or_told() -> bool:
            both = teams.on.job(job_id)["num_gpus"] + teams.on.job(other)["num_gpus"]
            assert both <= 2, "the limit holds at every moment"
            return limit in str(teams.on.job(other)["message"]) or teams.on.job(other)["num_gpus"] == 1

        answered("the limit binds", shared_or_told)
        pod = teams.on.pod(job_id)
        teams.cluster.apply(queue(GOLD, capability=gpus(5), deserved=gpus(2)))
        try:
            teams.on.until_on(job_id, 4)
            figures["grew_to"] = 4
            assert identity(teams.on.pod(job_id)) == identity(pod)
        finally:
            teams.cluster.apply(queue(GOLD, capability=gpus(2), deserved=gpus(2)))
        answered("the limit is back", lambda: rights(teams, GOLD) == ("Volcano", 2, 2))


def test_queues_of_one_parent_have_no_more_than_its_capability_together(teams: Teams, report: Report) -> None:
    parts = ("lab-a", "lab-b")
    teams.cluster.apply([queue("lab", capability=gpus(2)), *(queue(name, parent="lab") for name in parts)])
    try:
        answered("the parent's limit is read", lambda: rights(teams, "lab")[2] == 2 and rights(teams, "lab-b")[0])
        with report.scenario("the capability of a queue's parent") as figures:
            one = teams.submit("team-a", "part", [1], queue="lab-a", node="node-a", elastic=False)
            teams.on.until_on(one, 1)
            two = teams.submit("team-b", "part", [1, 2, 4], queue="lab-b", node="node-a")
            teams.on.until_on(two, 1)
            three = teams.submit("team-a", "part", [1], queue="lab-a", node="node-b", elastic=False)
            told = "queue lab-a is part of lab, which has 2 of at most 2 GPUs"
            answered("it is told why it waits", lambda: told in str(teams.on.job(three)["message"]))
            figures["gpus"] = sum(teams.on.job(job)["num_gpus"] for job in (one, two, three))
            assert figures["gpus"] == 2
    finally:
        teams.on.end(*teams.made)
        teams.made.clear()
        for name in (*parts, "lab"):
            teams.cluster.delete("queue.scheduling.volcano.sh", name)


def test_what_a_queue_deserves_is_taken_back_by_a_shrink_and_no_pod_ends(teams: Teams, report: Report) -> None:
    with report.scenario("reclaim by a shrink") as figures:
        theirs = [teams.submit("team-b", f"fills-{n}", [2, 4], queue=SILVER, node=f"node-{n}") for n in "ab"]
        for job_id in theirs:
            teams.on.until_on(job_id, 4)
        before = {job_id: identity(teams.on.pod(job_id)) for job_id in theirs}
        began = time.monotonic()
        claims = teams.submit("team-a", "claims", [2], queue=GOLD)
        teams.on.until_on(claims, 2)
        figures["submit_to_training_s"] = round(time.monotonic() - began, 1)
        counts = sorted(teams.on.job(job_id)["num_gpus"] for job_id in theirs)
        assert counts == [2, 4], "one of them gave two"
        assert {job_id: identity(teams.on.pod(job_id)) for job_id in theirs} == before
        assert all(in_order(teams.on.gpus.steps(job_id)) for job_id in theirs)
        assert teams.on.gpus.violations() == []
        rows = {(one["queue"], one["user"]): one for one in teams.on.client.shares()["users"]}
        assert rows[GOLD, account("team-a")]["held"] == 2
        mine = teams.client("team-a").shares()["users"]
        assert {one["user"] for one in mine} == {account("team-a")}, "of others only queues are seen"


# the launcher's rights


def as_launcher(cluster: Cluster, made: Object) -> str:
    """Return what the API server says when the launcher makes this object; empty if it does."""
    try:
        cluster.kubectl("create", f"--as={LAUNCHER}", "--dry-run=server", "-f", "-", text=json.dumps(made))
    except BedError as error:
        return str(error)
    return ""


def secret(namespace: str, **labels: str) -> Doc:
    about = {"name": f"s-{uuid.uuid4().hex[:6]}", "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": about, "type": "Opaque"}


def test_what_a_queue_and_a_job_say_about_plans_is_read(teams: Teams) -> None:
    def weight() -> object:
        return next(one for one in teams.on.client.shares()["queues"] if one["queue"] == SILVER)["makespan_weight"]

    weighted = queue(SILVER)
    weighted["metadata"]["annotations"] = {"volcano-reshape.io/makespan-weight": "3"}
    try:
        teams.cluster.apply(weighted)
        answered("the weight of the annotation holds", lambda: weight() == 3.0)
    finally:
        teams.cluster.apply(queue(SILVER))
    answered("without the annotation that of the coordinator holds", lambda: weight() is None)
    name = teams.submit("team-b", "weighted", [1], queue=SILVER, weight=5)
    assert teams.client("team-b").job(name)["weight"] == 5


def test_the_launcher_makes_nothing_where_it_has_no_business(teams: Teams) -> None:
    label = {"volcano-reshape.io/job": "one-abcdefgh"}
    made = steps_job.volcano("x", 1, [1], teams.on.shared)
    for namespace in ("kube-system", SYSTEM):
        made["metadata"]["namespace"] = namespace
        assert f"changes nothing in namespace {namespace}" in as_launcher(teams.cluster, made)
        assert f"changes nothing in namespace {namespace}" in as_launcher(teams.cluster, secret(namespace, **label))
    made["metadata"]["namespace"] = "team-a"
    assert as_launcher(teams.cluster, made) == ""
    assert as_launcher(teams.cluster, secret("team-a", **label)) == ""
    assert "Secrets of launches only" in as_launcher(teams.cluster, secret("team-a"))
    theirs = secret("team-a")
    teams.cluster.apply(theirs)
    name = theirs["metadata"]["name"]
    for change in (("delete", "secret", name), ("label", "secret", name, "volcano-reshape.io/job=one-abcdefgh")):
        with pytest.raises(BedError, match=r"not of a launch|forbidden"):
            teams.cluster.kubectl(*change, "-n", "team-a", f"--as={LAUNCHER}")
    assert teams.cluster.get("secret", name, "team-a") is not None
