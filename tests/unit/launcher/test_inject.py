"""What is added to a user's pod, and that nothing else of it changes."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.model import pod_fields
from launcher.admission import inject as pods
from launcher.admission.inject import CannotInject, Injection, PodSettings, inject
from launcher.admission.json_patch import difference
from launcher.cluster.pods import foreign_usage
from launcher.cluster.pods.foreign_usage import PodRequests
from launcher.names import CONTAINER, JOB, JOB_ID, LAUNCH, SIDECAR

SETTINGS = PodSettings(image="ours:1", coordinator="http://reshape-coordinator:8080")
ONE = Injection(job_id="default.train", job="default-train-abc", launch="train-trainer-0-0a1b2c3d")
POD: dict[str, Any] = {
    "restartPolicy": "Never",
    "containers": [{"name": "main", "image": "theirs", "command": ["python", "train.py"], "args": ["--fast"]}],
}

MAIN = POD["containers"][0]

NAMES = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
TEXTS = st.dictionaries(NAMES, st.text(max_size=8), max_size=3)
MAYBE_LIST = st.one_of(st.none(), st.just([]))
PROBE = st.fixed_dictionaries({"exec": st.just({"command": ["true"]}), "periodSeconds": st.integers(1, 9)})


def named(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Things with a name of their own; any of the fields may be missing or null."""
    one = st.fixed_dictionaries({"name": NAMES}, optional={name: st.none() | value for name, value in fields.items()})
    return st.lists(one, max_size=3, unique_by=lambda thing: thing["name"])


CONTAINERS = st.fixed_dictionaries(
    {"name": st.just("main"), "command": st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3)},
    optional={
        "image": NAMES,
        "args": st.lists(st.text(max_size=5), max_size=3),
        "env": st.none() | named(value=st.text(max_size=5)),
        "resources": st.none() | st.fixed_dictionaries({}, optional={"requests": TEXTS, "limits": TEXTS}),
        "volumeMounts": st.none() | named(mountPath=st.just("/data")),
        "livenessProbe": PROBE,
        "securityContext": TEXTS,
        "workingDir": st.just("/code"),
    },
)
TERMS = st.fixed_dictionaries(
    {"matchExpressions": st.just([{"key": "disk", "operator": "Exists"}])},
    optional={"matchFields": st.none() | named()},
)
AFFINITIES = st.fixed_dictionaries(
    {},
    optional={
        "podAffinity": TEXTS,
        "nodeAffinity": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                pods.REQUIRED: st.fixed_dictionaries({"nodeSelectorTerms": st.lists(TERMS, min_size=1, max_size=3)}),
                "preferredDuringSchedulingIgnoredDuringExecution": MAYBE_LIST,
            },
        ),
    },
)
SPECS = st.fixed_dictionaries(
    {
        "restartPolicy": st.sampled_from(["Never", "OnFailure"]),
        "containers": st.tuples(CONTAINERS).map(list),
        "dnsPolicy": st.just("ClusterFirstWithHostNet"),
    },
    optional={
        "volumes": st.none() | named(emptyDir=st.just({})),
        "initContainers": st.none() | named(image=NAMES),
        "nodeSelector": st.none() | TEXTS,
        "affinity": st.none() | AFFINITIES,
        "terminationGracePeriodSeconds": st.none() | st.integers(0, 500),
        "hostNetwork": st.booleans(),
        "serviceAccountName": NAMES,
        "tolerations": st.just([{"operator": "Exists"}]),
    },
)
METADATA = st.fixed_dictionaries({}, optional={"annotations": st.none() | TEXTS, "labels": st.none() | TEXTS})
INJECTIONS = st.builds(
    Injection,
    job_id=NAMES,
    job=NAMES,
    launch=NAMES,
    devices=st.sampled_from(["shared", "recreate"]),
    emulated=st.booleans(),
    gpu_ids=st.lists(NAMES, max_size=3).map(tuple),
    node=st.none() | NAMES,
)
ALL_SETTINGS = st.builds(
    PodSettings,
    image=NAMES,
    coordinator=NAMES,
    checkpoint_claim=st.none() | NAMES,
    gpu_resource=st.booleans(),
    grace_s=st.floats(0, 100),
)


def injected(
    spec: dict[str, Any] | None = None, one: Injection = ONE, settings: PodSettings = SETTINGS, **metadata: Any
):
    return inject(POD | (spec or {}), metadata, one, settings)


def container(spec: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        c for c in [*spec["containers"], *(spec.get("initContainers") or [])] if c["name"] == name
    )
    return found


def applied(patch: list[dict[str, Any]], document: Any) -> Any:
    """RFC 6902, the three operations that are used."""
    document = copy.deepcopy(document)
    for step in patch:
        *way, last = [word.replace("~1", "/").replace("~0", "~") for word in step["path"].split("/")[1:]]
        place = document
        for word in way:
            place = place[int(word)] if isinstance(place, list) else place[word]
        if step["op"] == "remove":
            del place[last]
        elif isinstance(place, list) and last == "-":
            assert step["op"] == "add"
            place.append(step["value"])
        else:
            key = int(last) if isinstance(place, list) else last
            assert step["op"] == ("replace" if isinstance(place, list) or key in place else "add")
            place[key] = step["value"]
    return document


def without_ours(spec: dict[str, Any], before: dict[str, Any], settings: PodSettings) -> dict[str, Any]:
    """The result less everything that may be added, in the shape that it had before."""
    spec = copy.deepcopy(spec)
    ours = {pods.INIT_CONTAINER, pods.SIDECAR_CONTAINER, pods.FOLDER_VOLUME, pods.KEYS_VOLUME, pods.CLAIM_VOLUME}
    main = container(spec, "main")
    assert main["command"][: len(pods.SHIM)] == pods.SHIM
    main["command"] = main["command"][len(pods.SHIM) :]
    for owner, was, name in (
        (spec, before, "volumes"),
        (spec, before, "initContainers"),
        (main, before["containers"][0], "volumeMounts"),
    ):
        owner[name] = [one for one in owner[name] if one["name"] not in ours] or was.get(name)
    main["env"] = [one for one in main.get("env") or [] if one["name"] != pods.VISIBLE] or before["containers"][0].get(
        "env"
    )
    for kind in ("limits", "requests"):
        (main.get("resources") or {}).get(kind, {}).pop(pods.GPU, None)
    if "affinity" in spec and (spec["affinity"] or {}).get("nodeAffinity"):
        spec["affinity"]["nodeAffinity"] = without_our_node(spec["affinity"]["nodeAffinity"])
    spec.pop("terminationGracePeriodSeconds")
    return spec


def without_our_node(affinity: dict[str, Any]) -> dict[str, Any]:
    terms = [dict(term) for term in (affinity.get(pods.REQUIRED) or {}).get("nodeSelectorTerms") or []]
    for term in terms:
        fields = [one for one in term.pop("matchFields", None) or [] if one.get("key") != "metadata.name"]
        term.update({"matchFields": fields} if fields else {})
    left = {name: value for name, value in affinity.items() if name != pods.REQUIRED}
    return {**left, pods.REQUIRED: {"nodeSelectorTerms": terms}} if any(terms) else left


def tidy(spec: dict[str, Any]) -> Any:
    """Nothing said and said to be empty are the same."""
    if isinstance(spec, dict):
        return {name: value for name, value in ((n, tidy(v)) for n, v in spec.items()) if value not in (None, {}, [])}
    return [tidy(one) for one in spec] if isinstance(spec, list) else spec


@given(SPECS, METADATA, INJECTIONS, ALL_SETTINGS)
def test_nothing_else_of_a_pod_changes(spec, metadata, one, settings) -> None:
    before = copy.deepcopy(spec)
    after, annotations, labels = inject(spec, metadata, one, settings)
    assert spec == before, "what was given is left as it is"
    rest = {name: value for name, value in before.items() if name != "terminationGracePeriodSeconds"}
    assert tidy(without_ours(after, before, settings)) == tidy(rest)
    added = {LAUNCH: one.launch, JOB_ID: one.job_id, "volcano.sh/preemptable": "false"}
    assert annotations == {**(metadata.get("annotations") or {}), **added}
    assert labels == {**(metadata.get("labels") or {}), JOB: one.job}
    assert after["terminationGracePeriodSeconds"] >= settings.grace_s + settings.kill_s
    assert after["terminationGracePeriodSeconds"] >= (before.get("terminationGracePeriodSeconds") or 0)


def test_volcano_passes_over_a_pod_that_is_injected() -> None:
    assert injected().annotations["volcano.sh/preemptable"] == "false"


@pytest.mark.parametrize("where", ["annotations", "labels"])
def test_what_a_user_says_about_preemption_stays(where: str) -> None:
    said = {"volcano.sh/preemptable": "true"}
    pod = injected(**{where: said})
    assert {**pod.annotations, **pod.labels}["volcano.sh/preemptable"] == "true"


@given(SPECS, METADATA, INJECTIONS, ALL_SETTINGS)
def test_twice_is_once(spec, metadata, one, settings) -> None:
    once = inject(spec, metadata, one, settings)
    other = Injection(job_id="x", job="x", launch="another", node="another", devices="shared")
    assert inject(once.spec, {"annotations": once.annotations, "labels": once.labels}, other, settings) == once


@given(SPECS, METADATA, INJECTIONS, ALL_SETTINGS)
def test_the_patch_makes_the_same_pod(spec, metadata, one, settings) -> None:
    after = inject(spec, metadata, one, settings)
    wanted = {"spec": after.spec, "metadata": metadata | {"annotations": after.annotations, "labels": after.labels}}
    patch = difference({"spec": spec, "metadata": metadata}, wanted)
    assert applied(patch, {"spec": spec, "metadata": metadata}) == wanted
    places = [step["path"] for step in patch]
    assert not any(place.endswith(("/image", "/args", "/livenessProbe", "/securityContext")) for place in places)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "a/b", "~", ""]), inner, max_size=3)
    ),
)


@given(st.dictionaries(st.sampled_from("ab"), JSON), st.dictionaries(st.sampled_from("ab"), JSON))
def test_a_patch_leads_from_any_document_to_any_other(before, after) -> None:
    patch = difference(before, after)
    assert repr(applied(patch, before)) == repr(after) or applied(patch, before) == after
    assert difference(after, after) == []


def test_what_is_added_to_a_plain_pod() -> None:
    spec = injected().spec
    main = container(spec, "main")
    assert main["command"] == [
        "python3", "-I", "-S", "/reshape/shim.py", "--folder", "/reshape", "--", "python", "train.py",
    ]  # fmt: skip
    assert main["args"] == ["--fast"]
    assert main["volumeMounts"] == [{"name": "reshape", "mountPath": "/reshape"}]
    assert main["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert [one["name"] for one in spec["initContainers"]] == ["reshape-init", "reshape-sidecar"]
    assert [one["name"] for one in spec["volumes"]] == ["reshape", "reshape-keys"]
    assert spec["terminationGracePeriodSeconds"] == 35


def test_the_keys_are_mounted_in_our_containers_only() -> None:
    spec = injected().spec
    secret = next(one for one in spec["volumes"] if one["name"] == "reshape-keys")
    assert secret["secret"]["secretName"] == ONE.launch
    holders = {
        c["name"]
        for c in [*spec["containers"], *spec["initContainers"]]
        for m in c["volumeMounts"]
        if m["name"] == "reshape-keys"
    }
    assert holders == {"reshape-init", "reshape-sidecar"}
    assert "reshape-keys" not in str(container(spec, "main"))


def test_our_containers_have_no_rights_they_do_not_need() -> None:
    for name in ("reshape-init", "reshape-sidecar"):
        one = container(injected().spec, name)
        rights = one["securityContext"]
        assert rights["runAsNonRoot"] and rights["runAsUser"] == 65532 and rights["readOnlyRootFilesystem"]
        assert rights["capabilities"] == {"drop": ["ALL"]} and not rights["allowPrivilegeEscalation"]
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"} and "memory" in one["resources"]["limits"]


def test_the_sidecar_lives_as_long_as_the_pod_and_is_probed() -> None:
    sidecar = container(injected().spec, "reshape-sidecar")
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["livenessProbe"]["httpGet"] == {"path": "/livez", "port": 8477}
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in sidecar["env"]


def test_in_the_hosts_network_nobody_claims_a_port() -> None:
    spec = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    sidecar = container(injected(spec).spec, "reshape-sidecar")
    assert "ports" not in sidecar and "livenessProbe" not in sidecar


@pytest.mark.parametrize(
    ("one", "visible", "limit"),
    [
        (Injection("j", "j", "l"), "all", None),
        (Injection("j", "j", "l", emulated=True, gpu_ids=("A",)), "all", None),
        (Injection("j", "j", "l", devices="recreate", gpu_ids=("A", "B")), None, "2"),
        (Injection("j", "j", "l", devices="recreate", emulated=True, gpu_ids=("A", "B")), "A,B", None),
        (Injection("j", "j", "l", devices="recreate", emulated=True), "void", None),
        (Injection("j", "j", "l", devices="recreate"), "void", None),  # what is granted could not be asked in time
    ],
)
def test_which_gpus_the_trainers_container_gets(one: Injection, visible: str | None, limit: str | None) -> None:
    main = container(injected(one=one).spec, "main")
    assert {e["name"]: e["value"] for e in main.get("env", [])}.get("NVIDIA_VISIBLE_DEVICES") == visible
    assert (main.get("resources") or {"limits": {}})["limits"].get("nvidia.com/gpu") == limit


def test_an_emulated_nodes_gpus_may_be_asked_for_as_well() -> None:
    one = Injection("j", "j", "l", devices="recreate", emulated=True, gpu_ids=("A", "B"))
    settings = PodSettings(image="i", coordinator="c", gpu_resource=True)
    assert container(injected(one=one, settings=settings).spec, "main")["resources"]["requests"] == {
        "nvidia.com/gpu": "2"
    }


def test_a_sidecar_sees_gpus_only_where_all_are_shared_and_real() -> None:
    def sees(one: Injection) -> bool:
        return "NVIDIA_VISIBLE_DEVICES" in str(container(injected(one=one).spec, "reshape-sidecar")["env"])

    assert sees(Injection("j", "j", "l"))
    assert not sees(Injection("j", "j", "l", emulated=True))
    assert not sees(Injection("j", "j", "l", devices="recreate"))


def test_a_variable_of_the_users_gives_way_in_its_own_place() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}, {"name": "B", "value": "$(NVIDIA_VISIBLE_DEVICES)"}]
    main = {**POD["containers"][0], "env": env}
    found = container(injected({"containers": [main]}).spec, "main")["env"]
    assert found == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, env[1]]


def test_where_a_device_plugin_chooses_no_variable_says_otherwise() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "B", "value": "b"}]
    one = Injection("j", "j", "l", devices="recreate", gpu_ids=("A",))
    assert container(injected({"containers": [{**MAIN, "env": env}]}, one=one).spec, "main")["env"] == env[1:]
    assert "env" not in container(injected({"containers": [{**MAIN, "env": env[:1]}]}, one=one).spec, "main")


def test_in_recreate_mode_too_only_the_trainer_asks_for_gpus() -> None:
    helper = {"name": "log", "image": "l", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    one = Injection("j", "j", "l", devices="recreate", gpu_ids=("A",))
    with pytest.raises(CannotInject, match="only the one that trains"):
        injected({"containers": [MAIN, helper]}, one=one, annotations={CONTAINER: "main"})


def test_a_pod_of_the_class_guaranteed_stays_one() -> None:
    limits = {"cpu": "4", "memory": "8Gi"}
    for resources in ({"limits": limits}, {"limits": limits, "requests": limits}):
        spec = injected({"containers": [{**MAIN, "resources": resources}]}).spec
        for name in ("reshape-init", "reshape-sidecar"):
            ours = container(spec, name)["resources"]
            assert ours["limits"] == ours["requests"] and set(ours["limits"]) == {"cpu", "memory"}
    for resources in ({"limits": limits, "requests": {"cpu": "1"}}, {"limits": {"cpu": "4"}}, None):
        spec = injected({"containers": [{**MAIN, "resources": resources}]}).spec
        assert "cpu" not in container(spec, "reshape-sidecar")["resources"]["limits"]


@pytest.mark.parametrize("cpu", [None, "2", "500m"])
@pytest.mark.parametrize("limits", [None, {"cpu": "2", "memory": "8Gi"}])
@pytest.mark.parametrize("resources", [None, {"cores": 2}, {"cores": 1, "memory": 2**33}])
def test_the_coordinator_knows_what_our_sidecar_requests(
    cpu: str | None, limits: dict[str, str] | None, resources: dict[str, Any] | None
) -> None:
    theirs = {**({"requests": {"cpu": cpu}} if cpu else {}), **({"limits": limits} if limits else {})}
    doc = {"pod": {"containers": [{"resources": theirs}]}, **({"resources": resources} if resources else {})}
    trainer = {**MAIN, "resources": pod_fields.trainer_resources({"resources": theirs}, doc)}
    spec = injected({"containers": [trainer]}).spec
    with_it = PodRequests(*(foreign_usage.requested(spec, kind) for kind in ("cpu", "memory")))
    without = PodRequests(*(foreign_usage.requested({"containers": [trainer]}, kind) for kind in ("cpu", "memory")))
    added = with_it.cores - without.cores, with_it.memory - without.memory
    assert added == pytest.approx(pod_fields.requested_beside(doc))
    assert pod_fields.requested_beside({**doc, "single_container": True}) == (0.0, 0.0)


def test_a_claim_for_checkpoints_is_mounted_where_both_look() -> None:
    spec = injected(settings=PodSettings(image="i", coordinator="c", checkpoint_claim="models")).spec
    mount = {"name": "reshape-checkpoints", "mountPath": "/reshape/checkpoints", "subPath": ONE.job}
    assert (
        mount in container(spec, "main")["volumeMounts"] and mount in container(spec, "reshape-sidecar")["volumeMounts"]
    )
    assert {"name": "reshape-checkpoints", "persistentVolumeClaim": {"claimName": "models"}} in spec["volumes"]


def test_a_pod_that_mounts_the_claim_for_checkpoints_itself_has_one_volume_of_it() -> None:
    theirs = {"name": "data", "persistentVolumeClaim": {"claimName": "models"}}
    main = {**MAIN, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    settings = PodSettings(image="i", coordinator="c", checkpoint_claim="models")
    spec = injected({"containers": [main], "volumes": [theirs]}, settings=settings).spec
    assert [each for each in spec["volumes"] if "persistentVolumeClaim" in each] == [theirs]
    for name in ("main", "reshape-sidecar"):
        mount = {"name": "data", "mountPath": "/reshape/checkpoints", "subPath": ONE.job}
        assert mount in container(spec, name)["volumeMounts"]


def named_node(name: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": [name]}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {pods.REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def test_the_decided_node_pins_the_pod_by_its_name_which_the_label_hostname_need_not_be() -> None:
    one = Injection("j", "j", "l", node="node-a")
    spec = injected({"nodeSelector": {"disk": "ssd"}}, one=one).spec
    assert spec["affinity"] == required({"matchFields": [named_node("node-a")]})
    assert spec["nodeSelector"] == {"disk": "ssd"} and pods.node_of(spec) == "node-a"
    assert "affinity" not in injected().spec


def test_what_else_the_user_wants_of_nodes_still_counts_in_each_of_the_terms() -> None:
    one, ssd = Injection("j", "j", "l", node="node-a"), [{"key": "disk", "operator": "In", "values": ["ssd"]}]
    theirs = required({"matchExpressions": ssd}, {"matchFields": [named_node("node-b")]}, {})
    spec = injected({"affinity": {"podAffinity": {"x": 1}, **theirs}}, one=one).spec
    terms = spec["affinity"]["nodeAffinity"][pods.REQUIRED]["nodeSelectorTerms"]
    assert terms[0] == {"matchExpressions": ssd, "matchFields": [named_node("node-a")]}
    assert terms[1] == {"matchFields": [named_node("node-b"), named_node("node-a")]}, "no node: it is said so"
    assert terms[2] == {}, "which fits no node"
    assert spec["affinity"]["podAffinity"] == {"x": 1}


@pytest.mark.parametrize(
    ("spec", "node"),
    [
        ({}, None),
        ({"nodeSelector": {"kubernetes.io/hostname": "a"}}, "a"),
        ({"affinity": required({"matchFields": [named_node("b")]}), "nodeSelector": None}, "b"),
        ({"affinity": required({"matchFields": [named_node("b")]}, {"matchFields": [named_node("c")]})}, None),
        ({"affinity": required({"matchFields": [named_node("b")]}, {"matchExpressions": [{}]})}, None),
        ({"affinity": required({"matchFields": [{**named_node("b"), "operator": "NotIn"}]})}, None),
        ({"affinity": {"nodeAffinity": None}}, None),
    ],
)
def test_the_only_node_that_a_pod_may_go_to(spec, node) -> None:
    assert pods.node_of(spec) == node


def test_one_of_several_containers_trains_if_it_is_named() -> None:
    two = {"containers": [{"name": "log", "image": "l"}, *POD["containers"]]}
    with pytest.raises(CannotInject, match="2 containers"):
        injected(two)
    spec = injected(two, annotations={CONTAINER: "main"}).spec
    assert "command" not in container(spec, "log") and container(spec, "main")["command"][0] == "python3"
    with pytest.raises(CannotInject, match="'other'"):
        injected(two, annotations={CONTAINER: "other"})


def test_an_image_that_carries_everything_needs_one_container() -> None:
    spec, *_ = injected(annotations={SIDECAR: "in-image"})
    main = container(spec, "main")
    assert "initContainers" not in spec
    assert main["command"][0] == pods.PYTHON and main["command"][-2:] == ["python", "train.py"]
    assert {m["name"] for m in main["volumeMounts"]} == {"reshape", "reshape-keys"}
    assert "POD_IP" in {e["name"] for e in main["env"]}
    assert injected(spec, annotations={SIDECAR: "in-image"}).spec == spec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"containers": [{"name": "main", "image": "i"}]}, "no `command`"),
        ({"containers": [{"name": "main", "image": "i", "command": []}]}, "no `command`"),
        ({"containers": []}, "0 containers"),
        ({"restartPolicy": "Always"}, "restartPolicy"),
        ({"shareProcessNamespace": True}, "shareProcessNamespace"),
        ({"hostPID": True}, "hostPID"),
        ({"containers": [{**MAIN, "resources": {"limits": {"nvidia.com/gpu": 1}}}]}, "leave it out"),
        ({"initContainers": [{"name": "i", "resources": {"requests": {"nvidia.com/gpu": 1}}}]}, "leave it out"),
        ({"volumes": [{"name": "reshape"}]}, "'reshape'"),
        ({"containers": [{**MAIN, "volumeMounts": [{"name": "reshape-keys", "mountPath": "/k"}]}]}, "'reshape-keys'"),
        ({"hostNetwork": True}, "dnsPolicy: ClusterFirstWithHostNet"),
        ({"dnsPolicy": "Default"}, "dnsPolicy: ClusterFirst."),
        ({"initContainers": [{"name": "reshape-sidecar"}]}, "'reshape-sidecar'"),
        (
            {"containers": [{**MAIN, "volumeMounts": [{"name": "x", "mountPath": "/reshape/checkpoints"}]}]},
            "another path",
        ),
        ({"containers": [{**MAIN, "volumeMounts": [{"name": "x", "mountPath": "/reshape"}]}]}, "another path"),
    ],
)
def test_what_cannot_be_injected_is_refused_with_what_to_do(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotInject, match=words) as refused:
        injected(spec)
    assert refused.value.reason == ("CommandRequired" if "command" in words else "InjectionRefused")
    assert str(refused.value).endswith(".")


def test_without_a_restart_policy_it_would_be_always() -> None:
    with pytest.raises(CannotInject, match="Never or OnFailure"):
        inject({"containers": POD["containers"]}, {}, ONE, SETTINGS)


def test_a_folder_with_a_longer_name_is_not_ours() -> None:
    mounts = [{"name": "x", "mountPath": "/reshaped"}]
    assert injected({"containers": [{**MAIN, "volumeMounts": mounts}]})


def test_in_recreate_mode_the_users_own_count_gives_way_to_the_granted_one() -> None:
    main = {**MAIN, "resources": {"limits": {"nvidia.com/gpu": 4, "cpu": "2"}}}
    one = Injection("j", "j", "l", devices="recreate", gpu_ids=("A",))
    assert container(injected({"containers": [main]}, one=one).spec, "main")["resources"] == {
        "limits": {"nvidia.com/gpu": "1", "cpu": "2"},
        "requests": {"nvidia.com/gpu": "1"},
    }


@pytest.mark.parametrize("devices", ["shared", "recreate"])
@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/gpu.shared",
        "nvidia.com/gpumem",
        "nvidia.com/gpucores",
        "amd.com/gpu",
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-memory",
        "volcano.sh/gpu-memory",
        "huawei.com/Ascend910",
        "google.com/tpu",
        "aws.amazon.com/neuron",
        "aliyun.com/gpu-mem",
        "tencent.com/vcuda-core",
        "cambricon.com/mlu",
        "hygon.com/dcunum",
        "4paradigm.com/vgpu",
        "iluvatar.ai/gpu",
        "metax-tech.com/gpu",
        "mthreads.com/vgpu",
    ],
)
def test_accelerators_that_nobody_here_shares_out_are_refused_by_name(name: str, devices: str) -> None:
    """It would hold them besides GPUs of ours, of which the coordinator knows nothing."""
    with pytest.raises(CannotInject, match=f"asks for {re.escape(name)}, but only whole NVIDIA GPUs"):
        spec_of(containers=[{**ONE_OF_ITS_OWN, "resources": {"limits": {name: "1"}}}], devices=devices)


@pytest.mark.parametrize(
    "name", ["cpu", "memory", "hugepages-2Mi", "rdma/hca_shared_devices_a", "vpc.amazonaws.com/efa"]
)
def test_other_resources_are_no_matter(name: str) -> None:
    assert spec_of(containers=[{**ONE_OF_ITS_OWN, "resources": {"limits": {name: "1"}}}])


def test_devices_by_a_claim_and_a_node_past_the_scheduler_are_refused() -> None:
    with pytest.raises(CannotInject, match="ResourceClaim, which may be GPUs"):
        spec_of(containers=[{**ONE_OF_ITS_OWN, "resources": {"claims": [{"name": "gpu"}]}}])
    with pytest.raises(CannotInject, match=re.escape("nodeSelector kubernetes.io/hostname: node-a instead")):
        spec_of(containers=[ONE_OF_ITS_OWN], nodeName="node-a")


def spec_of(devices: str = "shared", **spec: Any) -> dict[str, Any]:
    one = Injection("team.train", "train-abc", "train-l1", devices=devices, emulated=True)  # type: ignore[arg-type]
    return inject({"restartPolicy": "Never", **spec}, {}, one, PodSettings("ours:1", "http://c:8080")).spec


ONE_OF_ITS_OWN = {"name": "main", "image": "i", "command": ["python3", "train.py"]}
