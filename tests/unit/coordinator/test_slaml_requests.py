"""Slamls over HTTP on one machine: what the API server checks on a cluster, applied again, listed, deleted."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.api.slaml_requests import KEPT
from coordinator.errors import Conflict, Rejected
from coordinator.model import states as s
from coordinator.scheduling.slaml.slaml_fields import MOST_TASKS
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World

ROOT = Path(__file__).parents[3]
Doc = dict[str, Any]
ALONE = replace(SHORT, many_pods=False)
ID = "slaml.default.mnist"


def task(name: str, **more: Any) -> Doc:
    return {"taskName": name, "GPU": "1", "command": ["train"], **more}


def slaml(*tasks: Doc, target: object = "10m", **meta: Any) -> Doc:
    return {
        "apiVersion": "sla-operator.dcn.com/v1alpha1", "kind": "Slaml", "metadata": {"name": "mnist", **meta},
        "spec": {"slaTarget": target, "tasks": list(tasks) or [task("one"), task("two")]},
    }  # fmt: skip


def world() -> World:
    made = World(config=ALONE)
    made.store.put("observations", {"_id": "r", "gpus": 1, "cores": 0, "memory": 0, "execution_s": 40.0})
    made.boot()
    return made


def only(world: World) -> Doc:
    (found,) = world.api.slamls.all()
    return found


def test_its_tasks_run_one_after_another_and_it_is_told_how_it_stands() -> None:
    w = world()
    for name in ("one", "two"):
        w.machines.behaviour[f"default.mnist.{name}.0"] = Behaviour(iterations=5)
    asked = w.api.slamls.apply(slaml())
    assert (asked["slaml"], asked["state"], asked["target_s"]) == (ID, "Submitted", 600.0)
    w.tick(), w.tick()
    assert (only(w)["expected_s"], only(w)["progress"]) == (80.0, "0/2")
    assert only(w)["sentence"] == "It is expected to take 80.0 s, so it may wait 520.0 s of its 600 s."
    w.run(lambda w: only(w)["state"] == "Completed", 200)
    assert w.job("default.mnist.one.0").finish_ts <= w.job("default.mnist.two.0").doc["start_ts"]


def test_one_that_cannot_hold_is_refused_and_applied_again_with_the_target_that_it_was_told() -> None:
    w = world()
    w.api.slamls.apply(slaml(target=50))
    w.tick()
    assert (only(w)["state"], only(w)["minimum_target_s"], w.states()) == ("Refused", 77, {})
    w.api.slamls.apply(slaml(target=77))
    w.tick(), w.tick()
    assert only(w)["state"] in ("Queued", "Running") and len(w.states()) == 2


def test_one_that_has_ended_makes_room_for_another_of_its_name() -> None:
    w = world()
    w.machines.behaviour["default.mnist.one.0"] = Behaviour(iterations=5)
    w.api.slamls.apply(slaml(task("one")))
    w.run(lambda w: only(w)["state"] == "Completed", 200)
    w.api.slamls.apply(slaml(task("one")))
    w.run(lambda w: only(w)["state"] == "Running", 200)
    assert len(w.store.list("jobs")) == 2


def test_a_deleted_one_is_gone_and_its_jobs_are_cancelled() -> None:
    w = world()
    w.api.slamls.apply(slaml())
    w.run(lambda w: w.states().get("default.mnist.one.0") == s.RUNNING, 60)
    assert w.api.slamls.delete(ID)["slaml"] == ID
    w.run(lambda w: set(w.states().values()) == {s.CANCELLED}, 60)
    assert w.api.slamls.all() == []
    with pytest.raises(Rejected, match="There is no Slaml"):
        w.api.slamls.delete(ID)


def test_of_those_that_are_over_the_newest_are_kept() -> None:
    w = world()
    w.users.put("slamls", {"_id": "odd", "namespace": "default", "name": "open", "spec": "{}", "notes": "{}"})
    for n in range(KEPT + 2):
        over = {"finished": 1.0} if n % 2 else {"judged": {"accepted": False, "reason": "TargetTooSmall"}}
        w.users.put("slamls", {"_id": f"u{n}", "namespace": "default", "name": f"s{n}", "created": float(n), **over})
    w.api.slamls.apply(slaml())
    names = [view["name"] for view in w.api.slamls.all()]
    assert names == ["open", *(f"s{n}" for n in range(2, KEPT + 2)), "mnist"]


@pytest.mark.parametrize(("times", "done"), [(1, True), (99, False)])
def test_a_change_that_meets_the_controllers_is_made_again(
    times: int, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world()
    w.api.slamls.apply(slaml(target=50))
    w.tick()
    real, left = w.store.update, [times]

    def update(*given: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Conflict("changed meanwhile")
        return real(*given)

    monkeypatch.setattr(w.store, "update", update)
    with nullcontext() if done else pytest.raises(Conflict):
        assert w.api.slamls.apply(slaml(target=77))["target_s"] == 77


def test_a_dry_run_only_checks() -> None:
    w = world()
    assert w.api.slamls.apply(slaml(), dry_run=True)["slaml"] == ID
    assert w.api.slamls.all() == []


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"kind": "Slaml"}, "apiVersion must be sla-operator.dcn.com/v1alpha1"),
        ({**slaml(), "spec": []}, "metadata and spec must be objects"),
        (slaml(name="A b"), "metadata.name must be up to 63 small letters"),
        (slaml(annotations={"a": 1}), "metadata.annotations must hold texts"),
        (slaml(task("One")), "taskName must be up to 40 small letters"),
        (slaml(task("a"), task("a")), "two tasks have the taskName 'a'"),
        (slaml(task("a", containerReplicas=0)), "containerReplicas must be a whole number from 1 to 64"),
        (slaml(task("a", comand=["x"])), "task a has a field 'comand'; there are taskName, type"),
        (slaml(task("a", type="training")), "task a: type must be one of data, feature, model"),
        (slaml(task("a", command="train")), "task a: command must be a list"),
        (slaml(task("a", job=[])), "task a: job must be an object"),
        ({**slaml(), "spec": {"tasks": [1]}}, "tasks must be a list of at most 32 objects"),
        ({**slaml(), "spec": {"isSla": "no", "slaTarget": 5, "tasks": [task("a")]}}, "isSla must be true or false"),
        (slaml(target="soon"), "slaTarget must be seconds above 0"),
        (slaml(task("a", command=[])), "command is missing"),
    ],
)
def test_what_is_wrong_is_said_at_once(item: Doc, words: str) -> None:
    w = world()
    with pytest.raises(Rejected) as refused:
        w.api.slamls.apply(item)
    assert words in str(refused.value)
    assert w.api.slamls.all() == []


def test_one_machine_and_the_api_server_take_as_many_tasks() -> None:
    """The rules of the list itself are written into the CRD by hand, beside those that `make reference` writes."""
    crd = yaml.safe_load((ROOT / "manifests/base/slaml-crd.yaml").read_text(encoding="utf-8"))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert spec["properties"]["tasks"]["maxItems"] == MOST_TASKS


STARTS = json.dumps({"tasks": [task("one", command=None, containerImage="a")]})


@pytest.mark.parametrize(
    "odd",
    [
        {"status": 5}, {"status": {"conditions": [1], "tasks": "x"}}, {"status": {"conditions": 3}}, {"judged": 3},
        {"judged": [1]}, {"spec": 4, "notes": []}, {"spec": STARTS, "starts": json.dumps({"a": {"cmd": 1}})},
        {"namespace": {}, "name": [], "created": "x", "generation": None},
    ],
)  # fmt: skip
def test_a_row_that_somebody_has_changed_hides_no_other_and_lets_new_ones_in(odd: Doc) -> None:
    w = world()
    w.api.slamls.apply(slaml())
    w.users.put("slamls", {"_id": "odd", "namespace": "default", "name": "odd", "version": 1, **odd})
    assert {view["name"] for view in w.api.slamls.all()} >= {"mnist"} and len(w.api.slamls.all()) == 2
    w.tick(), w.tick()
    assert w.api.slamls.apply(slaml(name="two"))["name"] == "two"
    assert len(w.api.slamls.all()) == 3
    assert w.api.slamls.delete("slaml.default.two")["name"] == "two"


def test_on_a_cluster_kubectl_takes_them() -> None:
    w = World()
    for call in (lambda: w.api.slamls.apply(slaml()), lambda: w.api.slamls.delete(ID)):
        with pytest.raises(Rejected, match="kubectl apply -f FILE"):
            call()
