"""The rights that our service accounts were given, held against what they used in this session. Runs last.

The API server's audit log knows every request. A right that the whole suite never used is one too many; a request
that was refused is a right that is missing, or a part that asks for what it should not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coordinator.adapters.clock import SystemClock
from tests.cluster.bed import Bed
from tests.cluster.bed_report import Report
from tests.cluster.installed import SYSTEM, Installed

BEGAN = datetime.fromtimestamp(SystemClock().wall(), UTC)  # imported when the session collects its tests
WHOLE_SUITE = len(list(Path(__file__).parent.glob("test_*.py")))  # files of tests
OURS = f"system:serviceaccount:{SYSTEM}:reshape-"
DECISION = "authorization.k8s.io/decision"


class Right(NamedTuple):
    account: str
    verb: str
    group: str
    resource: str


class Request(NamedTuple):
    """A request to the API server. `refused`: for want of a right; a quota or a policy answers 403, too."""

    right: Right
    refused: bool


@pytest.fixture
def requests(bed: Bed, installed: Installed) -> list[Request]:
    lines = (bed.folder / "audit.log").read_text().splitlines()
    return [request for event in map(json.loads, lines) for request in _of(event)]


def _of(event: dict[str, Any]) -> Iterator[Request]:
    """Those of our accounts, in this session. Making an object by server-side apply is a patch and a create."""
    user, about = event["user"]["username"], event.get("objectRef")
    if not user.startswith(OURS) or about is None or datetime.fromisoformat(event["requestReceivedTimestamp"]) < BEGAN:
        return
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    code = event.get("responseStatus", {}).get("code", 0)
    refused = (event.get("annotations") or {}).get(DECISION) == "forbid"
    verbs = [event["verb"]] + ["create"] * (event["verb"] == "patch" and code == 201)
    for verb in verbs:
        yield Request(Right(user.removeprefix(OURS), verb, about.get("apiGroup", ""), resource), refused)


def granted(bed: Bed) -> set[Right]:
    """All rights of our accounts, through whatever binding."""
    found = set()
    for kind in ("rolebinding", "clusterrolebinding"):
        for binding in bed.cluster.list(kind, None):
            role = binding["roleRef"]
            for subject in binding.get("subjects") or []:
                if subject["kind"] == "ServiceAccount" and subject.get("namespace") == SYSTEM:
                    rules = (bed.cluster.get(role["kind"].lower(), role["name"], SYSTEM) or {})["rules"]
                    found |= {right for rule in rules for right in _rights(subject["name"], rule)}
    return found


def _rights(account: str, rule: dict[str, Any]) -> Iterator[Right]:
    for group in rule.get("apiGroups", []):
        for resource in rule.get("resources", []):
            for verb in rule["verbs"]:
                yield Right(account.removeprefix("reshape-"), verb, group, resource)


def test_nothing_was_asked_that_is_forbidden(requests: list[Request]) -> None:
    assert {request.right for request in requests if request.refused} == set()


def test_no_right_is_one_too_many(
    requests: list[Request], bed: Bed, request: pytest.FixtureRequest, report: Report
) -> None:
    if len({item.path for item in request.session.items}) < WHOLE_SUITE:
        pytest.skip("which rights are used is known only after all cluster tests")
    with report.scenario("rights granted are rights used") as figures:
        given = granted(bed)
        used = {each.right for each in requests if not each.refused}
        figures |= {"granted": len(given), "used": len(given & used)}
        assert given, "no rights were found at all"
        assert sorted(given - used) == []


def test_no_right_has_a_wildcard_and_agents_have_none(bed: Bed, installed: Installed) -> None:
    given = granted(bed)
    assert {right.account for right in given} == {"coordinator", "launcher", "setup"}
    reviews = {("create", "tokenreviews"), ("create", "subjectaccessreviews")}
    assert {(right.verb, right.resource) for right in given if right.account == "coordinator"} == reviews
    assert not [right for right in given if "*" in right]
