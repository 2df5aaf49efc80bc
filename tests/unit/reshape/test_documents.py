"""Files of job documents: JSON, several in one, YAML; anything else gets a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from coordinator.errors import Rejected
from reshape.cli import documents

A, B = {"job_id": "a"}, {"job_id": "b"}


@pytest.mark.parametrize(
    "text",
    [
        '[{"job_id": "a"}, {"job_id": "b"}]',
        '{"job_id": "a"}\n{"job_id": "b"}',
        '{"job_id": "a"} {"job_id": "b"}\n\n',
        '\ufeff[{"job_id": "a"}, {"job_id": "b"}]',
        "job_id: a\n---\njob_id: b\n",
        "- job_id: a\n- job_id: b\n",
        "---\njob_id: a\n---\n---\njob_id: b\n...\n",
    ],
)
def test_several_documents_are_read_from_one_file(text: str) -> None:
    assert documents.read(text.encode()) == [A, B]


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "must hold one object"),
        (b"3", "must hold one object"),
        (b'[{"a": 1}, 2]', "must hold one object"),
        (b"\xff\xff", "not UTF-8"),
        (b'{"a": ', "not JSON"),
        (b"a: [", "neither JSON nor YAML"),
        (b"[" * 5000, "nested too deep"),
        (b"- " * 5000, "nested too deep"),
        (b'{"iterations": ' + b"9" * 5000 + b"}", "The file is not JSON: Exceeds the limit"),
        (b"iterations: " + b"9" * 5000, "neither JSON nor YAML: Exceeds the limit"),
        (b"deadline: 2026-13-45", "neither JSON nor YAML: month must be in"),
        (b"a: &a [*a]", "more than 1,000,000 values, as by an alias"),
        (
            b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in b"bcdefghi").replace(
                b"*a", b"1"
            ),
            "more than 1,000,000 values",
        ),
        (b"a: !!python/object/apply:os.system [echo]", "neither JSON nor YAML"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(raw: bytes, sentence: str) -> None:
    with pytest.raises(click.ClickException, match=sentence) as refusal:
        documents.read(raw)
    assert "\n" not in refusal.value.message


def test_a_relative_code_is_meant_beside_the_file_or_else_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, current = tmp_path / "beside", tmp_path / "current"
    for folder in (beside / "both", current / "both", current / "here"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(current)

    def meant(code: str) -> str:
        return str(documents.with_full_code({"code": code}, Path("../beside"))["code"])

    assert meant(".") == str(beside)
    assert meant("both") == str(beside / "both")
    assert meant("../current/here") == str(current / "here")
    assert meant("here") == str(current / "here")
    assert meant("nowhere") == str(current / "nowhere"), "the launch will say that it is not there"


@pytest.mark.parametrize("doc", [{}, {"code": None}, {"code": 3}, {"code": "/full"}])
def test_a_code_that_is_no_relative_path_stays_as_it_is(doc: dict[str, object]) -> None:
    assert documents.with_full_code(doc, Path("elsewhere")) == doc


def test_without_pyyaml_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert documents.read(b'{"job_id": "a"}') == [A]
    with pytest.raises(click.ClickException, match="install PyYAML"):
        documents.read(b"job_id: a")


def test_each_task_of_a_slaml_runs_beside_its_file_unless_it_names_a_folder(tmp_path: Path) -> None:
    tasks = [{"taskName": "a"}, {"taskName": "b", "job": {"code": "/full", "epochs": 3}}, {"job": "odd"}, "odd"]
    placed = documents.with_folders({"kind": "Slaml", "spec": {"tasks": tasks}}, tmp_path)["spec"]["tasks"]
    assert placed[:2] == [
        {"taskName": "a", "job": {"code": str(tmp_path)}}, {"taskName": "b", "job": {"code": "/full", "epochs": 3}},
    ]  # fmt: skip
    assert placed[2:] == tasks[2:], "the coordinator says what is wrong"
    assert documents.with_folders({"spec": 3}, tmp_path) == {"spec": 3}


@pytest.mark.parametrize("raw", [b'{"job_id": "a", "gpus": 1, "gpus": 2}', b"job_id: a\nenv:\n- {gpus: 1, gpus: 2}\n"])
def test_a_name_that_stands_twice_is_refused(raw: bytes) -> None:
    with pytest.raises(Rejected, match="gpus is given twice"):
        documents.read(raw)


def test_merged_mappings_and_names_of_two_kinds_are_no_repetition() -> None:
    text = b"x: &x {a: 1}\ny: &y {b: 2}\nboth: {<<: *x, <<: *y}\nkinds: {1: one, '1': text}\n"
    assert documents.read(text)[0]["both"] == {"a": 1, "b": 2}
