"""One entry goes into Volcano's scheduler configuration and out again; all else that stands there stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from coordinator.errors import Fatal, Rejected
from launcher.volcano_conf import ARGUMENTS, MARK, asks_before_start, with_extender, without_extender
from launcher.volcano_connection import CONFIG_MAP, KEY, NAMESPACE, connect, disconnect, scheduler_conf
from tests.fakes.kube import Kube

# As Volcano's installer files and charts ship them.
V1_10 = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: capacity
  - name: nodeorder
  - name: binpack
"""
V1_11 = V1_10.replace("capacity", "proportion")
V1_15 = V1_11.replace("enqueue, allocate", "enqueue, reserve, allocate") + "  - name: reservation\n"
# As administrators write them.
COMMENTED = """\
# Mind: ask the platform team before you change this.
actions: "enqueue, allocate, preempt, reclaim, backfill"  # preemption since May
configurations:
# our own
- name: allocate
  arguments:
    predicateErrorCacheEnable: false
- name: enqueue
  arguments:
    overcommit-factor: 1.5   # measured
tiers:

- plugins:
    - name: priority
    - name: sla          # days, not hours
      arguments:
        sla-waiting-time: 48h

    # evicts nobody
    - name: conformance
- plugins:
    - name: drf
    - name: proportion   # weights of teams

    # packs from left to right
    - name: binpack
      arguments:
        binpack.weight: 5

# end
"""
FLOW = """\
actions: "enqueue, allocate"
configurations: [{name: backfill, arguments: {}}]  # one
tiers:
- plugins: [{name: priority}, {name: gang}]  # first
- plugins: [{name: overcommit}, {name: predicates}, {name: capacity}]  # second
"""
INDENTED = """\
actions: "enqueue, allocate"
tiers:
    - plugins:
        - name: overcommit
        - name: proportion"""
AS_JSON = '{"actions": "enqueue, allocate", "tiers": [{"plugins": [{"name": "overcommit"}]}]}'
ALL = [V1_10, V1_11, V1_15, COMMENTED, FLOW, INDENTED, AS_JSON]
ENTRY = {"name": "extender", "arguments": ARGUMENTS}


def tier_of_extender(conf: dict[str, Any]) -> int:
    (found,) = [index for index, tier in enumerate(conf["tiers"]) if ENTRY in tier["plugins"]]
    return found


@pytest.mark.parametrize(("text", "tier"), [*zip(ALL, [1, 1, 1, 0, 1, 0, 0], strict=True)])
def test_one_entry_is_added_where_the_first_plugin_lets_jobs_in_and_nothing_else_changes(text: str, tier: int) -> None:
    before = yaml.safe_load(text)
    after = yaml.safe_load(with_extender(text).text)
    assert tier_of_extender(after) == tier
    after["tiers"][tier]["plugins"].remove(ENTRY)
    assert after["tiers"] == before["tiers"]
    assert after["actions"] == before["actions"]
    each_pod = [
        each["name"] for each in after["configurations"] if not each["arguments"].get("predicateErrorCacheEnable", 1)
    ]
    assert set(each_pod) == {"allocate", "backfill"}
    theirs = [each for each in before.get("configurations", []) if each["name"] == "enqueue"]
    assert all(each in after["configurations"] for each in theirs)


@pytest.mark.parametrize("text", ALL)
def test_it_may_be_repeated(text: str) -> None:
    once = with_extender(text)
    again = with_extender(once.text)
    assert again.text == once.text
    assert again.keeps_comments


@pytest.mark.parametrize("text", [V1_10, V1_11, V1_15, COMMENTED])
def test_what_went_in_comes_out_and_leaves_the_text_as_it_was(text: str) -> None:
    assert without_extender(with_extender(text).text).text == text


@pytest.mark.parametrize("text", ALL)
def test_nothing_of_ours_asks_after_it_came_out(text: str) -> None:
    out = without_extender(with_extender(text).text).text
    assert yaml.safe_load(out)["tiers"] == yaml.safe_load(text)["tiers"]
    assert "reshape-coordinator" not in out
    assert without_extender(out).text == out


@pytest.mark.parametrize("text", [COMMENTED, FLOW])
def test_comments_and_lines_of_others_stay(text: str) -> None:
    edited = with_extender(text)
    assert edited.keeps_comments
    assert all(line.partition("#")[2] in edited.text for line in text.splitlines())
    if text is COMMENTED:
        new = iter(edited.text.splitlines())
        assert all(line in new for line in text.splitlines())  # in their order


def test_a_text_that_cannot_be_edited_in_place_is_written_anew_and_that_is_said() -> None:
    anchors = "actions: enqueue\nx: &p [{name: overcommit}] # shared\ntiers:\n- plugins: *p\n- plugins: *p\n"
    edited = with_extender(anchors)
    assert not edited.keeps_comments
    conf = yaml.safe_load(edited.text)
    assert [ENTRY in tier["plugins"] for tier in conf["tiers"]] == [True, False]


def test_an_older_entry_of_ours_is_brought_up_to_date_and_keeps_what_was_chosen() -> None:
    """One with `prioritize`, whose `true` is a text, and with a longer timeout."""
    old = (
        V1_10
        + "  - name: extender\n    arguments:\n"
        + f"      extender.urlPrefix: {ARGUMENTS['extender.urlPrefix']}\n"
        + '      extender.ignorable: "true"\n      extender.httpTimeout: 1s\n'
        + "      extender.prioritizeVerb: prioritize\n"
    )
    plugins = yaml.safe_load(with_extender(old).text)["tiers"][1]["plugins"]
    assert [plugin for plugin in plugins if plugin["name"] == "extender"] == [
        {"name": "extender", "arguments": {**ARGUMENTS, "extender.httpTimeout": "1s"}}
    ]
    assert without_extender(old).text == V1_10


def test_an_entry_of_ours_in_a_later_tier_moves_to_where_it_is_asked() -> None:
    late = f"{V1_10}- plugins:\n  - name: nodegroup\n  - name: extender\n    arguments:\n"
    late += f"      extender.urlPrefix: {ARGUMENTS['extender.urlPrefix']}\n"
    assert tier_of_extender(yaml.safe_load(with_extender(late).text)) == 1


def test_the_extender_of_somebody_else_is_neither_changed_nor_taken_out() -> None:
    foreign = V1_10 + "  - name: extender\n    arguments: {extender.urlPrefix: http://theirs}\n"
    with pytest.raises(Rejected, match="one extender only"):
        with_extender(foreign)
    assert without_extender(foreign).text == foreign


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tiers: [", "no YAML"),
        ("", "no list `tiers`"),
        ("tiers: []", "no tier of plugins"),
        ("tiers: [{plugins: gang}]", "no list `plugins`"),
        ("- a", "no list `tiers`"),
    ],
)
def test_what_is_no_configuration_is_refused_with_a_sentence(text: str, why: str) -> None:
    with pytest.raises(Rejected, match=why):
        with_extender(text)


def test_what_an_administrator_chose_for_an_action_stays_and_is_named() -> None:
    chosen = V1_10 + "configurations:\n- name: allocate\n  arguments: {predicateErrorCacheEnable: true}\n"
    edited = with_extender(chosen)
    assert yaml.safe_load(edited.text)["configurations"][0]["arguments"] == {"predicateErrorCacheEnable": True}
    assert "action allocate stays as it is" in " ".join(edited.notes)


def test_without_the_action_enqueue_nobody_is_asked_and_that_is_said() -> None:
    bare = V1_10.replace("enqueue, ", "")
    assert not asks_before_start(bare)
    assert asks_before_start(V1_15)
    assert "lack `enqueue`" in " ".join(with_extender(bare).notes)


# in a cluster


@pytest.fixture
def kube() -> Kube:
    found = Kube()
    found.put("ConfigMap", CONFIG_MAP, NAMESPACE, data={KEY: V1_11, "other": "stays"})
    return found


def test_connect_and_disconnect_change_one_key_of_one_config_map(kube: Kube) -> None:
    (said,) = connect(kube)
    assert said.startswith("Volcano's scheduler asks our extender: volcano-scheduler.conf in ConfigMap volcano-system/")
    data = kube.of("ConfigMap")[0]["data"]
    assert MARK in data[KEY]
    assert data["other"] == "stays"
    assert "Nothing was changed" in next(iter(connect(kube)))
    assert "no longer asks" in next(iter(disconnect(kube)))
    assert kube.of("ConfigMap")[0]["data"] == {KEY: V1_11, "other": "stays"}
    assert "did not ask it" in next(iter(disconnect(kube)))


def test_it_is_found_where_the_schedulers_deployment_reads_it(kube: Kube) -> None:
    """Volcano's chart names it after the release, and the namespace is the release's."""
    spec = {
        "volumes": [{"name": "sock", "emptyDir": {}}, {"name": "conf", "configMap": {"name": "vc-configmap"}}],
        "containers": [
            {
                "args": ["--logtostderr", "--scheduler-conf=/volcano.scheduler/my.conf"],
                "volumeMounts": [{"name": "conf", "mountPath": "/volcano.scheduler"}],
            }
        ],
    }
    labels = {"app": "volcano-scheduler"}
    kube.put("Deployment", "vc-scheduler", "vc", meta={"labels": labels}, spec={"template": {"spec": spec}})
    kube.put("ConfigMap", "vc-configmap", "vc", data={"my.conf": V1_15})
    assert str(scheduler_conf(kube)) == "my.conf in ConfigMap vc/vc-configmap"
    list(connect(kube))
    assert kube.objects["ConfigMap", NAMESPACE, CONFIG_MAP]["data"][KEY] == V1_11


def test_an_account_that_may_not_list_deployments_takes_the_usual_place() -> None:
    class Narrow(Kube):
        def list(self, *_: Any, **__: Any) -> Any:
            raise Fatal("forbidden")

    assert scheduler_conf(Narrow())[:3] == (NAMESPACE, CONFIG_MAP, KEY)


def test_a_change_of_somebody_else_meanwhile_is_not_overwritten(kube: Kube) -> None:
    class Slow(Kube):
        def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
            found = copy.deepcopy(super().get(kind, name, namespace))
            self.objects["ConfigMap", NAMESPACE, CONFIG_MAP]["data"][KEY] = V1_15
            return found

    slow = Slow()
    slow.objects = kube.objects
    with pytest.raises(Rejected, match="changed by someone else"):
        list(connect(slow))
    assert kube.of("ConfigMap")[0]["data"][KEY] == V1_15


def test_a_cluster_without_volcano_is_told() -> None:
    with pytest.raises(Rejected, match="install Volcano first"):
        list(connect(Kube()))
    assert "nothing to take out" in next(iter(disconnect(Kube())))
