"""Which nodes `reshape up` has, by what is written on its command line."""

from __future__ import annotations

import pytest

from coordinator.errors import Rejected
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from reshape.services.inventory import check_types, in_words, inventory


def test_each_node_has_what_was_written_and_no_two_gpus_share_a_name() -> None:
    a, b, c = inventory(None, ["a=8xV100", "b=8xP100", "c=cpu:2"])
    assert [(n.name, len(n.gpus), n.cores) for n in (a, b, c)] == [("a", 8, 0.0), ("b", 8, 0.0), ("c", 0, 2.0)]
    assert {g.gpu_type for g in b.gpus} == {"P100"} and all(g.emulated for g in a.gpus)
    assert len({g.gpu_id for g in (*a.gpus, *b.gpus)}) == 16
    assert c.memory > 0


def test_the_short_form_is_this_machine_with_its_cores() -> None:
    (node,) = inventory("4xV100")
    assert [g.gpu_id for g in node.gpus] == [f"EMULATED-V100-{n}" for n in range(4)]
    assert node.cores >= 1


@pytest.mark.parametrize(
    "text", ["a", "a=", "=4xV100", "a=0xV100", "a=4V100", "a b=4xV100", "a=cpu:0", "a=cpu:x", "-=cpu:1"]
)
def test_a_node_that_cannot_be_read_is_one_sentence_that_shows_how(text: str) -> None:
    with pytest.raises(Rejected) as refusal:
        inventory(None, [text])
    assert str(refusal.value).startswith("--node ") and "such as" in str(refusal.value)


def test_cores_that_cannot_be_read_are_not_taken_for_gpus() -> None:
    with pytest.raises(Rejected, match=r"c=cpu:2 \(cores\), not 'a=cpu:1e9'"):
        inventory(None, ["a=cpu:1e9"])


def test_gpus_of_a_type_that_nobody_knows_are_not_emulated() -> None:
    with pytest.raises(Rejected) as refusal:
        check_types(inventory("4xv100"), ["V100", "K80"])
    said = "No node and no speed profile has the GPU type 'v100', did you mean V100?"
    assert str(refusal.value) == f"{said} GPUs to emulate are a number and a type, such as 4xV100."
    check_types(inventory(None, ["a=2xMine", "b=1xH100", "c=cpu:1"]), ["Mine"])


def test_real_gpus_are_of_the_type_that_they_say() -> None:
    check_types([FoundNode("a", (FoundGpu("g", "Unheard-of", None, False),))], ["V100"])


def test_two_nodes_of_one_name_and_both_forms_at_once_are_refused() -> None:
    with pytest.raises(Rejected, match="--node a is given twice"):
        inventory(None, ["a=1xV100", "a=cpu:1"])
    with pytest.raises(Rejected, match="Give either --gpus or --node"):
        inventory("1xV100", ["a=1xV100"])


def test_what_is_up_is_told_in_words() -> None:
    assert in_words(inventory("1xV100")) == "1 emulated V100 GPU"
    assert in_words([FoundNode("c", cores=2.0)]) == "2 emulated cores"
    nodes = inventory(None, ["a=2xV100", "c=cpu:1"])
    assert in_words(nodes) == "2 emulated V100 GPUs on a, 1 emulated core on c"
