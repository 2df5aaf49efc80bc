"""What the watches show: fresh or said to be out of step, with the last word of pods that vanished."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launcher.cluster.api import Doc, Expired
from launcher.cluster.informer import Changes, Informer
from tests.fakes.kube import AWAY, Kube, as_api
from tests.patience import eventually


@pytest.fixture
def kube() -> Kube:
    found = Kube()
    found.put("Pod", "a", status={"phase": "Running"})
    return found


@pytest.fixture
def informer(kube: Kube) -> Iterator[Informer]:
    made = Informer(as_api(kube), "Pod", "default", None, lambda: None)
    made.start()
    eventually(lambda: made.in_step and kube._watches)
    yield made
    made.stop()
    kube.put("Pod", "last", status={})  # ends its watch


def phases(informer: Informer) -> dict[str, str]:
    return {doc["metadata"]["name"]: doc["status"].get("phase") for doc in informer.items().values()}


def test_it_follows_what_changes(kube: Kube, informer: Informer) -> None:
    assert phases(informer) == {"a": "Running"}
    kube.put("Pod", "b", status={"phase": "Pending"})
    kube.put("Pod", "a", status={"phase": "Failed"})
    eventually(lambda: phases(informer) == {"a": "Failed", "b": "Pending"})


def test_the_last_state_of_a_pod_that_vanished_is_kept_until_it_was_looked_at(kube: Kube, informer: Informer) -> None:
    kube.put("Pod", "a", status={"phase": "Succeeded"})
    kube.vanish("Pod", "a")
    eventually(lambda: informer.vanished())
    (pod,) = informer.vanished().values()
    assert (pod.phase, pod.deleted, pod.sure) == ("Succeeded", True, True)
    informer.looked_at(informer.vanished())
    assert informer.vanished() == {} and phases(informer) == {}


def test_where_nobody_looks_only_the_newest_that_vanished_are_kept(
    kube: Kube, informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.cluster.informer.MOST_VANISHED", 2)
    for name in "bcd":
        kube.put("Pod", name, status={"phase": "Succeeded"})
        kube.vanish("Pod", name)
    eventually(lambda: {pod.name for pod in informer.vanished().values()} == {"c", "d"})


@pytest.mark.parametrize("trouble", [Expired("too old"), AWAY, RuntimeError("a fault")])
def test_after_trouble_it_reads_all_again_and_what_vanished_meanwhile_proves_little(
    kube: Kube, informer: Informer, trouble: Exception
) -> None:
    kube.trouble = AWAY
    kube.break_watches(trouble)  # type: ignore[arg-type]
    eventually(lambda: not informer.in_step)
    kube.objects.pop(("Pod", "default", "a"))
    kube.trouble = None
    kube.put("Pod", "b", status={"phase": "Running"})
    eventually(lambda: informer.in_step and phases(informer) == {"b": "Running"})
    (pod,) = informer.vanished().values()
    assert pod.deleted and not pod.sure


def names_of(changes: Changes) -> list[str]:
    return sorted("gone" if item is None else str(item["metadata"]["name"]) for item in changes.take_objects().values())


def test_a_reader_is_told_what_is_there_and_then_only_what_has_changed(kube: Kube, informer: Informer) -> None:
    changes = informer.changes()
    assert (names_of(changes), names_of(changes)) == (["a"], [])
    for name in "bc":
        kube.put("Pod", name, status={"phase": "Pending"})
    eventually(lambda: len(informer.items()) == 3)
    assert names_of(changes) == ["b", "c"]
    kube.put("Pod", "d", status={"phase": "Pending"})
    kube.vanish("Pod", "d")  # nobody has heard of it
    kube.vanish("Pod", "a")
    eventually(lambda: len(informer.items()) == 2)
    assert names_of(changes) == ["gone"]
    kube.objects.pop(("Pod", "default", "b"))
    kube.put("Pod", "c", status={"phase": "Running"})
    kube.break_watches(Expired("too old"))
    eventually(lambda: len(informer.items()) == 1)
    eventually(lambda: kube._watches)
    assert names_of(changes) == ["c", "gone"]


def test_a_watch_that_ends_goes_on_where_it_was_without_a_list(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.cluster.informer.WATCH_S", 0.01)
    monkeypatch.setattr("launcher.cluster.informer.WATCHES", 3)
    made = Informer(as_api(kube), "Pod", "default", None, lambda: None)
    made.start()
    eventually(lambda: [verb for verb, kind, _ in kube.calls].count("watch") >= 7)
    made.stop()
    assert [verb for verb, _, _ in kube.calls][:8] == ["list", *["watch"] * 3, "list", *["watch"] * 3]


def test_only_what_is_read_is_kept_of_an_object(kube: Kube) -> None:
    kube.put("Node", "n", None, meta={"managedFields": [1]}, status={"images": ["many"], "capacity": {}})

    def without_images(node: Doc) -> Doc:
        return {"metadata": node["metadata"], "status": {"capacity": node["status"]["capacity"]}}

    made = Informer(as_api(kube), "Node", None, None, lambda: None, without_images)
    made.start()
    eventually(lambda: made.items())
    (node,) = made.items().values()
    assert (node["status"], "managedFields" in node["metadata"]) == ({"capacity": {}}, False)
    made.stop()
    kube.put("Node", "last", None, status={"capacity": {}})


def test_of_other_kinds_nothing_is_kept(kube: Kube) -> None:
    kube.put("Job", "j")
    jobs = Informer(as_api(kube), "Job", None, None, lambda: None)
    jobs.start()
    eventually(lambda: jobs.items() and kube._watches)
    kube.vanish("Job", "j")
    eventually(lambda: not jobs.items())
    assert jobs.vanished() == {}
    jobs.stop()
    kube.put("Job", "last")


def test_a_kind_that_the_cluster_lacks_is_absent_until_it_is_installed(
    kube: Kube, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.cluster.informer.LOOK_AGAIN_S", 0.01)
    kube.without = {"Job"}
    made = Informer(as_api(kube), "Job", None, None, lambda: None)
    made.start()
    eventually(lambda: made.absent)
    assert "this cluster has no kind Job" in caplog.text and not made.in_step
    kube.without = set()
    eventually(lambda: made.in_step)
    assert not made.absent
    made.stop()
    kube.put("Job", "last")


def test_of_a_kind_that_is_no_longer_served_all_objects_stay_and_are_out_of_step(kube: Kube) -> None:
    kube.put("Job", "j")
    made = Informer(as_api(kube), "Job", None, None, lambda: None)
    made.start()
    eventually(lambda: made.in_step and kube._watches)
    kube.without = {"Job"}
    kube.break_watches(Expired("too old"))
    eventually(lambda: not made.in_step)
    assert (len(made.items()), made.absent) == (1, False)
    assert "nothing is started, changed or cancelled until it is back" in made.trouble
    kube.without = set()
    eventually(lambda: made.in_step)
    assert made.trouble == ""
    made.stop()
    kube.put("Job", "last")
