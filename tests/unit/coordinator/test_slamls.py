"""Slamls in the coordinator: accepted or refused with the smallest target, run task after task, followed to the end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from adaptive_scheduler.settings import Settings
from coordinator.model import states as s
from coordinator.scheduling import intake
from coordinator.scheduling.slaml.slaml_spec import Slaml, document, documents, problems, quantity
from coordinator.stores.bootstrap import FoundNode
from tests.fakes.shims import Behaviour
from tests.fakes.store import Hiccup
from tests.fakes.world import SHORT, World

Doc = dict[str, Any]

# The example of the Slaml paper, with what its images start.
TASKS: list[Doc] = [
    {"taskName": "ml-task-1", "type": "data", "containerImage": "data-preprocessing", "containerRegistry": "ddocker122",
     "containerTag": "latest", "containerReplicas": 1, "CPU": "2m", "memory": "2Mi", "command": ["prepare"]},
    {"taskName": "ml-task-2", "type": "feature", "containerImage": "feature-extraction", "containerReplicas": 3,
     "containerRegistry": "ddocker122", "containerTag": "latest", "CPU": "3m", "memory": "2Mi", "command": ["extract"]},
    {"taskName": "ml-task-3", "type": "model", "containerImage": "model-training", "containerRegistry": "ddocker122",
     "containerTag": "latest", "containerReplicas": 3, "GPU": "4", "memory": "4Mi", "command": ["train"], "args": ["x"],
     "modelParams": [{"batch-size": 64, "epochs": 14, "lr": 0.0001}, {"batch-size": 128, "epochs": 56, "lr": 0.0001},
                     {"batch-size": 256, "epochs": 14, "lr": 0.0001}]},
]  # fmt: skip
UID = "0a1b2c3d-1111"


def row(tasks: list[Doc] | None = None, target: object = 50, **more: Any) -> Doc:
    spec = {"isSla": True, "slaTarget": target, "name": "mnist", "tasks": TASKS if tasks is None else tasks}
    if target is None:
        spec["isSla"] = False
    return {
        "_id": UID, "namespace": "machine", "name": "slaml", "generation": 1, "created": 1_700_001_000.0,
        "spec": json.dumps(spec), "notes": "{}", "deleted": False, **more,
    }  # fmt: skip


def task(name: str = "one", replicas: int = 1, gpus: int = 1, **more: Any) -> Doc:
    made: Doc = {"taskName": name, "type": "model", "containerImage": "img", "containerReplicas": replicas}
    return made | ({"GPU": str(gpus)} if gpus else {}) | {"command": ["train"], **more}


# what it becomes


def test_the_papers_example_becomes_seven_jobs_that_intake_takes() -> None:
    slaml = Slaml.from_row(row())
    docs = documents(slaml)
    assert problems(slaml) == []
    assert [doc["job_id"] for doc in docs] == [
        "machine.slaml.ml-task-1.0", *(f"machine.slaml.ml-task-2.{n}" for n in range(3)),
        *(f"machine.slaml.ml-task-3.{n}" for n in range(3)),
    ]  # fmt: skip
    assert [intake.problems(doc) for doc in docs] == [[]] * 7
    assert [doc["depends_on"] for doc in docs] == [[]] + [["machine.slaml.ml-task-1.0"]] * 3 + [
        [f"machine.slaml.ml-task-2.{n}" for n in range(3)]
    ] * 3
    last = docs[-1]
    assert (last["image"], last["command"]) == ("ddocker122/model-training:latest", ["train", "x"])
    assert (last["optional_num_gpus"], docs[0]["optional_num_gpus"]) == ([4], [0])
    assert last["env"] == {
        "BATCH_SIZE": "256", "EPOCHS": "14", "LR": "0.0001", "MODEL_PARAMS": json.dumps(TASKS[2]["modelParams"][2]),
    }  # fmt: skip
    assert docs[1]["pod"]["containers"][0]["resources"]["requests"] == {"cpu": "3m", "memory": "2Mi"}
    assert {doc["sla"] for doc in docs} == {50.0}
    assert [(t["name"], t["replicas"]) for t in docs[1]["tasks"]] == [("ml-task-2", 1), ("ml-task-3", 3)]


def verbatim(**starts: Doc) -> Slaml:
    """The paper's listing as printed: no task says a command."""
    tasks = [{name: value for name, value in one.items() if name not in ("command", "args")} for one in TASKS]
    images = {f"ddocker122/{image}:latest": found for image, found in starts.items()}
    return Slaml.from_row(row(tasks, starts=json.dumps(images)))


def test_the_papers_listing_as_printed_runs_what_its_images_start() -> None:
    found = {"entrypoint": ["python"], "cmd": ["run.py"]}
    slaml = verbatim(**{"data-preprocessing": found, "feature-extraction": found, "model-training": found})
    assert problems(slaml) == []
    assert [doc["command"] for doc in documents(slaml)] == [["python", "run.py"]] * 7
    accepted = Slaml.from_row({**row([]), "plan": slaml.plan})
    assert documents(accepted) == documents(slaml), "the images may start something else by then"


def test_arguments_take_the_place_of_those_of_the_image() -> None:
    one = {name: value for name, value in task(args=["--fast"]).items() if name != "command"}
    starts = json.dumps({"img": {"entrypoint": ["python"], "cmd": ["run.py"]}})
    assert document(Slaml.from_row(row([one], starts=starts)), 0, 0)["command"] == ["python", "--fast"]


def test_where_an_image_cannot_be_read_the_reason_is_said_with_what_to_write() -> None:
    found = {"entrypoint": ["python"], "cmd": []}
    slaml = verbatim(**{"data-preprocessing": found, "feature-extraction": found, "model-training": {"why": "gone"}})
    (said,) = problems(slaml)
    assert said.startswith("task ml-task-3: command is missing: write there what its image would start")
    assert said.endswith("; it was not read from the image: gone")
    assert len(problems(verbatim())) == 3


def test_quantities_are_those_of_kubernetes() -> None:
    texts = ("2m", "2Mi", "1.5", "4", 3, "1Ki", "x", "1e3", None, "")
    assert [quantity(t) for t in texts] == [0.002, 2 * 2.0**20, 1.5, 4, 3, 1024, None, None, None, None]


def test_a_pods_own_pieces_and_fields_of_a_job_stay() -> None:
    pod = {"volumes": [{"name": "v"}], "containers": [{"volumeMounts": [1], "resources": {"requests": {"a": "1"}}}]}
    more = {"pod": pod, "env": {"LR": "own"}, "checkpoint_claim": "c", "epochs": 3}
    made = document(Slaml.from_row(row([task(CPU="1", modelParams=[{"lr": 1}], job=more)])), 0, 0)
    (trainer,) = made["pod"]["containers"]
    assert trainer == {"volumeMounts": [1], "resources": {"requests": {"a": "1", "cpu": "1"}}}
    assert made["pod"]["volumes"] == [{"name": "v"}]
    assert (made["env"]["LR"], made["checkpoint_claim"], made["epochs"]) == ("own", "c", 3)


def test_the_annotations_say_queue_and_gpu_counts() -> None:
    notes = {"volcano-reshape.io/gpus": "4, 1,2", "scheduling.volcano.sh/queue-name": "team"}
    made = document(Slaml.from_row(row([task(gpus=4)], notes=json.dumps(notes))), 0, 0)
    assert (made["optional_num_gpus"], made["queue"]) == ([1, 2, 4], "team")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": None}, "task one: command is missing: write there what its image would start"),
        ({"CPU": "lots"}, "CPU must be a quantity"),
        ({"GPU": "1500m"}, "GPU must be a whole number"),
        ({"modelParams": [{"lr": 1}, {"lr": 2}]}, "modelParams has 2 entries for 1 replicas"),
        ({"modelParams": [{"lr": [1]}]}, "must be a name with a number or a text"),
        ({"job": {"image": "other", "sla": 3}}, "job cannot set image, sla: the Slaml determines that"),
        ({"job": {"epochs": 0}}, "task one: epochs must be a whole number"),
        ({"job": {"pod": "no json"}, "CPU": "1"}, "pod is a text, but no JSON"),
        ({"job": {"pod": {"containers": "x"}}, "CPU": "1"}, "pod.containers must be a list"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(changes: Doc, words: str) -> None:
    (found,) = problems(Slaml.from_row(row([{**task(), **changes}])))
    assert words in found


def test_a_spec_too_deep_to_be_read_is_refused() -> None:
    deep = {**row(), "spec": '{"job":' * 9900 + "1" + "}" * 9900}
    assert "tasks is empty: list at least one task" in problems(Slaml.from_row(deep))


def test_a_target_that_is_no_time_is_refused() -> None:
    assert "slaTarget must be seconds above 0" in problems(Slaml.from_row(row(target="0s")))[0]


# in a world


def world(seconds: dict[int, float] | None = None, **more: Any) -> World:
    """Past tasks took so long, by their GPUs."""
    made = World(nodes=[FoundNode("n2", cores=8.0, memory=2.0**34)], **more)
    for gpus, took in (seconds or {}).items():
        made.store.put("observations", {"_id": f"r{gpus}", "gpus": gpus, "cores": 0, "memory": 0, "execution_s": took})
    made.boot()
    return made


def put(world: World, **more: Any) -> None:
    world.users.put("slamls", {**row(**more), "created": world.clock.wall(), "version": 1})


def now(world: World) -> Doc:
    found = world.users.get("slamls", UID)
    assert found is not None
    return found


def condition(world: World, kind: str) -> Doc:
    return next(one for one in now(world)["status"]["conditions"] if one["type"] == kind)


def change(world: World, generation: int, **more: Any) -> None:
    world.users.update("slamls", UID, {}, {"generation": generation, "spec": row(**more)["spec"]})


def test_tasks_run_one_after_another_and_the_deadline_is_the_slamls_own() -> None:
    w = world({1: 40.0})
    for n in range(2):
        w.machines.behaviour[f"machine.slaml.two.{n}"] = Behaviour(iterations=5)
    w.machines.behaviour["machine.slaml.one.0"] = Behaviour(iterations=5)
    put(w, tasks=[task("one"), task("two", 2)], target=100)
    created = w.clock.wall()
    w.tick()
    accepted = condition(w, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "Accepted")
    assert accepted["message"] == "It is expected to take 80.0 s, so it may wait 20.0 s of its 100 s."
    w.run(lambda w: w.states().get("machine.slaml.one.0") == s.RUNNING, 60)
    first = w.job("machine.slaml.one.0")
    assert (first.submit_ts, first.doc["expected_s"]) == (created, 40.0), "of the present task alone"
    assert first.doc["sla_waiting_s"] == pytest.approx(20.0 - 2.0, abs=1.1)
    w.tick()
    assert [t["state"] for t in now(w)["status"]["tasks"]] == ["RUN", "QUEUE"]
    assert (now(w)["status"]["state"], now(w)["status"]["progress"]) == ("Running", "0/2")
    w.run(lambda w: bool(now(w).get("finished")), 200)
    status = now(w)["status"]
    assert (status["state"], status["progress"], condition(w, "Completed")["status"]) == ("Completed", "2/2", "True")
    starts = [w.job(f"machine.slaml.{name}").doc["start_ts"] for name in ("one.0", "two.0", "two.1")]
    assert starts[0] < min(starts[1:])
    writes = w.store.writes
    w.tick()
    assert w.store.writes == writes


def test_one_that_cannot_hold_is_refused_and_let_in_with_the_smallest_target_that_holds() -> None:
    w = world({1: 60.0})
    put(w, tasks=[task("one")], target=50)
    w.tick()
    accepted = condition(w, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "TargetTooSmall")
    assert "The smallest slaTarget that would hold is 58." in accepted["message"]
    assert (now(w)["status"]["state"], now(w)["status"]["minimumTarget"]) == ("Refused", 58)
    assert w.states() == {}
    w.tick(100.0)
    change(w, 2, tasks=[task("one")], target=58)
    w.tick()
    asked = w.clock.wall()
    assert (condition(w, "Accepted")["status"], condition(w, "Accepted")["observedGeneration"]) == ("True", 2)
    w.run(lambda w: w.states().get("machine.slaml.one.0") == s.RUNNING, 60)
    assert w.job("machine.slaml.one.0").submit_ts == asked, "its time runs from when this target was asked for"
    told = [d["sentence"] for d in w.api.history.decisions("slaml.machine.slaml", 10)]
    assert ["cannot hold" in sentence for sentence in told] == [False, True]


def test_pieces_of_a_pod_with_keys_that_no_store_takes_are_kept() -> None:
    w = world()
    limits = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    put(w, tasks=[task(CPU="1", job={"pod": limits})])
    w.tick(), w.tick()
    kept = json.loads(w.job("machine.slaml.one.0").doc["pod"])
    assert kept["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "1"}}


def test_what_intake_refuses_late_is_said_of_its_task() -> None:
    """The queue may forbid what no Slaml can know."""
    w = world(config=replace(SHORT, checkpoints_last=False))
    w.store.put("queues", {"_id": "default", "inject": True, "devices": "recreate"})
    put(w, tasks=[task(job={"optional_num_gpus": [1, 2]})])
    w.tick(), w.tick()
    (shown,) = now(w)["status"]["tasks"]
    assert (shown["state"], "checkpoint_claim" in shown["message"]) == ("FAILED", True)


def test_without_rows_it_is_accepted_and_that_is_said() -> None:
    w = world()
    put(w, tasks=[task()])
    w.tick()
    assert (condition(w, "Accepted")["status"], condition(w, "Accepted")["reason"]) == ("True", "LengthUnknown")


def test_without_a_deadline_it_has_none() -> None:
    w = world({1: 60.0})
    put(w, tasks=[task()], target=None)
    w.tick(), w.tick()
    assert (condition(w, "Accepted")["reason"], w.job("machine.slaml.one.0").doc.get("sla")) == ("NoDeadline", None)


@pytest.mark.parametrize("target", ["999999999999h", 2**62])
def test_a_target_beyond_every_calendar_is_as_good_as_none(target: object) -> None:
    w = world({1: 60.0})
    put(w, tasks=[task()], target=target)
    w.tick(), w.tick()
    assert condition(w, "Accepted")["status"] == "True"
    assert now(w)["status"]["latestStart"] == "9999-12-31T23:59:59Z"


def test_one_that_comes_late_is_at_risk_and_then_violated_for_ever() -> None:
    w = world({1: 30.0})
    w.machines.behaviour["machine.slaml.one.0"] = Behaviour(iterations=60)
    put(w, tasks=[task("one")], target=40)
    w.run(lambda w: w.states().get("machine.slaml.one.0") == s.RUNNING, 60)
    assert (condition(w, "AtRisk")["status"], condition(w, "Violated")["status"]) == ("False", "False")
    w.run(lambda w: condition(w, "AtRisk")["status"] == "True", 60)
    assert condition(w, "AtRisk")["message"] == "It is expected to end after its target of 40 s."
    assert condition(w, "Violated")["status"] == "False"
    w.run(lambda w: bool(now(w).get("finished")), 200)
    assert (condition(w, "AtRisk")["status"], condition(w, "Violated")["status"]) == ("False", "True")
    assert condition(w, "Completed")["status"] == "True"


def test_what_no_node_has_is_named_and_looked_for_again() -> None:
    w = world()
    put(w, tasks=[task(gpus=8)])
    w.tick()
    accepted = condition(w, "Accepted")
    assert accepted["reason"] == "Infeasible"
    assert accepted["message"] == "Task one asks for 8 GPUs, and no node has more than 4."
    change(w, 2, tasks=[task(gpus=0, CPU="16")])
    w.tick()
    assert condition(w, "Accepted")["message"] == "Task one asks for 16 CPU cores, and no node has more than 8."
    w.store.put("nodes", {"_id": "n3", "cores": 32.0, "memory": 0.0, "heard": True})
    w.tick(), w.tick()
    assert condition(w, "Accepted")["status"] == "True"


def test_a_task_that_fails_fails_those_after_it_and_the_slaml_says_why() -> None:
    w = world()
    w.machines.behaviour["machine.slaml.one.0"] = Behaviour(iterations=5)
    put(w, tasks=[task("one"), task("two")])
    w.run(lambda w: w.states().get("machine.slaml.one.0") == s.RUNNING, 60)
    w.api.operator.cancel("machine.slaml.one.0")
    w.run(lambda w: bool(now(w).get("finished")), 60)
    assert [t["state"] for t in now(w)["status"]["tasks"]] == ["CANCELLED", "FAILED"]
    assert now(w)["status"]["tasks"][1]["message"].endswith("had to be completed before it, was cancelled")


def test_a_deleted_slaml_is_cancelled_jobs_and_leaves_only_them() -> None:
    w = world()
    put(w, tasks=[task("one"), task("two")])
    w.run(lambda w: w.states().get("machine.slaml.one.0") == s.RUNNING, 60)
    w.users.update("slamls", UID, {}, {"deleted": True})
    w.run(lambda w: all(w.job(f"machine.slaml.{n}.0").doc.get("closed") for n in ("one", "two")), 60)
    assert set(w.states().values()) == {s.CANCELLED}
    assert w.job("machine.slaml.one.0").doc["message"] == "its Slaml slaml was deleted"
    assert w.users.get("slamls", UID) is None


def test_the_same_name_again_gets_jobs_of_other_names() -> None:
    w = world()
    put(w, tasks=[task("one", job={"job_type": "mnist"})])
    w.run(lambda w: "machine.slaml.one.0" in w.states(), 60)
    w.users.update("slamls", UID, {}, {"deleted": True})
    w.run(lambda w: w.users.get("slamls", UID) is None, 60)
    w.users.put("slamls", {**row([task("one")]), "_id": "ffff0000-2", "created": w.clock.wall(), "version": 1})
    w.run(lambda w: w.states().get("machine.slaml.one.0.ffff0000") == s.RUNNING, 60)


def test_a_new_target_of_one_that_runs_reaches_its_jobs() -> None:
    w = world({1: 60.0})
    put(w, tasks=[task("one"), task("two")], target=200)
    w.run(lambda w: w.states().get("machine.slaml.one.0") == s.RUNNING, 60)
    change(w, 2, tasks=[], target="5m")
    w.run(lambda w: {w.job(f"machine.slaml.{n}.0").doc["sla"] for n in ("one", "two")} == {300.0}, 10)
    assert (now(w)["status"]["target"], condition(w, "Accepted")["status"]) == ("300s", "True")


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("writes", range(8))
def test_a_store_that_fails_anywhere_while_it_is_taken_in_neither_loses_nor_doubles_a_job(
    writes: int, where: Hiccup
) -> None:
    w = world()
    w.tick()
    put(w, tasks=[task("one", 2), task("two", 2)])
    w.store.hiccups.extend([*[""] * writes, where])
    w.tick()
    w.boot()
    w.run(lambda w: now(w).get("inserted") and len(w.states()) == 4, 60)
    assert sorted(w.states()) == sorted(f"machine.slaml.{n}.{i}" for n in ("one", "two") for i in "01")


def test_waiting_times_follow_new_rows() -> None:
    w = world({1: 10.0})
    w.submit("all", [4], Behaviour(iterations=1000))
    w.run(lambda w: w.states()["all"] == s.RUNNING, 60)
    put(w, tasks=[task("one")], target=100)
    w.tick(), w.tick()
    assert (now(w)["status"]["state"], now(w)["status"]["waitingTime"]) == ("Queued", 90.0)
    for n in range(3):
        w.store.put("observations", {"_id": f"x{n}", "gpus": 1, "cores": 0, "memory": 0, "execution_s": 30.0})
    w.boot()
    w.tick(), w.tick()
    assert now(w)["status"]["waitingTime"] == 70.0


def test_an_overdue_task_goes_from_run_to_stop_to_queue_and_ends() -> None:
    paper = Settings(systems=("deadline",), cooldown_factor=0.0)
    w = world({4: 5.0, 1: 20.0}, settings=paper)
    w.machines.behaviour["machine.slaml.one.0"] = Behaviour(iterations=400)
    put(w, tasks=[task("one", gpus=4, job={"elastic": True})], target=100)
    w.run(lambda w: w.states().get("machine.slaml.one.0") == s.RUNNING, 60)
    w.tick(6.0)
    w.submit("lighter", [1], Behaviour(iterations=5), sla=70, tasks=[{"gpus": 1}])
    seen: list[str] = []
    for _ in range(200):
        w.tick()
        state = now(w)["status"]["tasks"][0]["state"]
        seen += [state] if seen[-1:] != [state] else []
        if now(w).get("finished"):
            break
    assert seen == ["RUN", "STOP", "QUEUE", "RUN", "DONE"]
