"""What a document says about its pod: what is let in, and what is refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import pod_fields
from coordinator.scheduling.intake import acceptance_fields, problems

GOOD = {"_id": "a", "job_id": "a", "state": "submitted", "command": ["x"], "optional_num_gpus": [1]}
VOLCANO = {"namespace": "team-a", "name": "train", "uid": "u"}


@pytest.mark.parametrize(
    "fields",
    [
        {"namespace": "team-a", "queue": "training.fast", "image": "registry/image:1"},
        {"pod": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "serviceAccountName": "trainer"}},
        {"pod": {}, "single_container": True},
        {"origin": "volcano", "volcano": VOLCANO},
        {"origin": "record"},
    ],
)
def test_what_kubernetes_takes_is_let_in(fields: dict[str, Any]) -> None:
    assert problems({**GOOD, **fields}) == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"namespace": "Team A"},
            "namespace must be a name that Kubernetes takes, of small letters, digits and dashes",
        ),
        ({"namespace": "a.b"}, "namespace must be"),
        ({"namespace": "a\n"}, "namespace must be"),
        ({"namespace": 7}, "namespace must be"),
        ({"queue": "-q"}, "queue must be a name"),
        ({"queue": "q" * 300}, "queue must be a name"),
        ({"pod": []}, "pod must be an object"),
        ({"pod": "{x"}, "pod is a text, but no JSON"),
        ({"pod": "[]"}, "pod must be an object"),
        ({"pod": {"volumes": "x"}}, "pod.volumes must be a list of objects"),
        ({"pod": {"containers": ["x"]}}, "pod.containers must be a list of objects"),
        ({"pod": {"volumes": [{"name": "{{ lookup('pipe', 'x') }}"}]}}, "pod holds a template mark"),
        ({"pod": {"{% x %}": 1}}, "pod holds a template mark"),
        ({"pod": {"a": ["b"] * 20_000}}, "pod has more than"),
        ({"single_container": "yes"}, "single_container must be true or false"),
        ({"origin": "elsewhere"}, "origin must be record or volcano"),
        ({"origin": "volcano"}, "written by the launcher"),
        ({"volcano": VOLCANO}, "written by the launcher"),
        ({"origin": "volcano", "volcano": {"name": 1}}, "written by the launcher"),
    ],
)
def test_what_it_does_not_take_is_refused_with_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    found = problems({**GOOD, **fields})
    assert len(found) >= 1
    assert sentence in found[0]


def test_a_pod_nested_without_end_is_refused_at_once() -> None:
    pod: dict[str, Any] = {}
    for _ in range(5_000):
        pod = {"a": pod}
    assert "nested more than" in problems({**GOOD, "pod": pod})[0]


def test_a_pod_with_keys_that_no_store_takes_is_kept_as_a_text() -> None:
    limits = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    doc = {**GOOD, "pod": limits}
    assert problems(doc) == []
    changes = acceptance_fields(doc, "u", 0.0)
    assert (isinstance(changes["pod"], str), pod_fields.pod_spec({**doc, **changes})) == (True, limits)
    assert problems({**doc, **changes}) == []
    assert "pod" not in acceptance_fields({**GOOD, "pod": {"hostNetwork": True}}, "u", 0.0)


def test_what_no_store_takes_elsewhere_is_refused_before_a_launch_would_have_to_write_it() -> None:
    assert "'a.b'" in problems({**GOOD, "hyper_parameters": {"a.b": 1}})[0]
    assert "'$set'" in problems({**GOOD, "x_notes": [{"$set": 1}]})[0]
    assert "no number" in problems({**GOOD, "x_notes": [float("nan")]})[0]
