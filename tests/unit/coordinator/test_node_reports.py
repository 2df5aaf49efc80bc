"""Nodes whose agents report: which reports are believed, what is written of them, and what silence means."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.errors import Conflict, Rejected, Transient, Unauthorized
from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode, register_node
from coordinator.telemetry.node_reports import AWAY_BEATS, BOOTS, GONE_S, NodeReports
from sidecar.protocol import NodeGpu, NodeJobs, NodeReply, NodeReport, sign
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import GPU_TYPE, SHORT, FakeClock, World

KEY = b"the agents' key"
AWAY_S = AWAY_BEATS * SHORT.heartbeat_s


def gpus(node: str, count: int = 2, **more: Any) -> list[NodeGpu]:
    return [NodeGpu(f"{node}-{i}", GPU_TYPE, 2**34, True, **more) for i in range(count)]


class Agents:
    def __init__(self) -> None:
        self.world, self.seq = World(gpus=0, agent_key=KEY), 0
        self.world.tick()

    def report(self, node: str = "n2", found: list[NodeGpu] | None = None, **more: Any) -> NodeReply:
        self.seq += 1
        fields = {"boot": "b", "seq": self.seq, "gpus": gpus(node) if found is None else found, "cores": 4.0}
        return self.say(node, msgspec.json.encode(NodeReport(**{**fields, **more})))

    def say(self, node: str, raw: bytes, key: bytes = KEY) -> NodeReply:
        path = f"/v1/nodes/{node}"
        body, signature = self.world.api.messages.node_reported(node, path, raw, sign(key, "POST", path, raw))
        assert signature == sign(key, "REPLY", path, body)
        self.world.c.inventory.register_nodes()
        return msgspec.json.decode(body, type=NodeReply)

    def known(self) -> dict[str, tuple[str, str]]:
        return {doc["_id"]: (doc["node"], doc["state"]) for doc in self.world.users.list("gpus")}

    def heard(self) -> dict[str, bool]:
        return {node["node"]: node["heard"] for node in self.world.api.fleet.nodes()}

    def pass_by(self, seconds: float, *reporting: str) -> None:
        for _ in range(int(seconds)):
            self.world.tick()
            for node in reporting:
                self.report(node)


@pytest.fixture
def agents() -> Agents:
    return Agents()


def test_a_report_makes_a_node_and_its_gpus_known(agents: Agents) -> None:
    reply = agents.report()
    assert (reply.seq, reply.heartbeat_s) == (1, SHORT.heartbeat_s)
    assert agents.known() == {"n2-0": ("n2", s.IDLE), "n2-1": ("n2", s.IDLE)}
    doc = agents.world.users.get("nodes", "n2")
    assert doc is not None and (doc["cores"], doc["agent"], doc["heard"]) == (4.0, True, True)


def test_the_same_again_costs_no_write_and_a_change_one(agents: Agents) -> None:
    agents.report()
    writes = agents.world.store.writes
    agents.report()
    assert agents.world.store.writes == writes
    agents.report(found=gpus("n2", 1))
    assert agents.known() == {"n2-0": ("n2", s.IDLE)}


def test_a_captured_report_is_not_believed_again_not_even_after_the_machine_was_booted(agents: Agents) -> None:
    agents.report(boot="one")
    with pytest.raises(Conflict):
        agents.report(boot="one", seq=1)
    agents.report(boot="two", seq=1)
    with pytest.raises(Conflict):
        agents.report(boot="one", seq=99)
    for n in range(2 * BOOTS):
        agents.report(boot=f"later {n}")
    assert len(agents.world.c.telemetry.nodes._seqs["n2"]) == BOOTS


def test_only_who_has_the_key_is_believed_and_nobody_where_there_is_none(agents: Agents) -> None:
    raw = msgspec.json.encode(NodeReport(boot="b", seq=1))
    with pytest.raises(Unauthorized):
        agents.say("n2", raw, b"another key")
    agents.world.agent_key = b""
    agents.world.boot()
    with pytest.raises(Unauthorized):
        agents.say("n2", raw, b"")


@pytest.mark.parametrize(
    ("node", "more", "sentence"),
    [
        ("n2", {"gpus": [NodeGpu("a", "V100"), NodeGpu("a", "V100")]}, "each once"),
        ("n2", {"gpus": [NodeGpu("a b", "V100")]}, "by a name of letters"),
        ("n2", {"gpus": [NodeGpu(str(i), "V100") for i in range(1025)]}, "at most 1024 GPUs"),
        ("n2", {"gpus": [NodeGpu("a", "")]}, "Report a type"),
        ("n2", {"cores": -1.0}, "that a machine can have"),
        ("no node", {}, "A node's name has up to"),
    ],
)
def test_what_cannot_be_true_is_refused_with_a_sentence(agents: Agents, node: str, more: Any, sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        agents.report(node, **more)
    assert agents.known() == {}


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"boot": "b"}', b'{"boot": "b", "seq": "x"}', b'{"boot":"b","seq":1,"gpus":[1]}']
)
def test_what_cannot_be_read_is_refused(agents: Agents, raw: bytes) -> None:
    with pytest.raises(Rejected, match="cannot be read"):
        agents.say("n2", raw)


def test_a_gpu_is_on_one_node_until_that_one_is_silent(agents: Agents) -> None:
    agents.report("n2")
    agents.world.tick()
    with pytest.raises(Rejected, match="GPU n2-0 is on node n2, which is heard"):
        agents.report("n3", gpus("n2"))
    agents.pass_by(AWAY_S + 2, "n4")
    agents.report("n3", gpus("n2"))
    assert agents.known()["n2-0"] == ("n3", s.IDLE)


def test_one_that_does_not_act_takes_no_report(agents: Agents) -> None:
    agents.world.c.elector.resign()
    with pytest.raises(Transient):
        agents.report()


def test_a_silent_node_gets_no_start_and_a_node_that_is_back_does(agents: Agents) -> None:
    agents.report("n2")
    agents.pass_by(AWAY_S + 1)
    assert agents.heard() == {"n1": True, "n2": False}
    agents.world.submit("one", [2], Behaviour(iterations=5))
    agents.pass_by(3)
    assert agents.world.states()["one"] == s.SUBMITTED
    agents.report("n2")
    agents.pass_by(2, "n2")
    assert agents.heard()["n2"]
    assert agents.world.job("one").node == "n2"


def test_what_trains_on_a_silent_node_is_left_alone_and_not_grown(agents: Agents) -> None:
    agents.report("n2", gpus("n2", 2))
    agents.world.submit("one", [1, 2], Behaviour(iterations=4_000))
    agents.world.submit("two", [1], Behaviour(iterations=40))
    agents.pass_by(20, "n2")
    assert agents.world.states() == {"one": s.RUNNING, "two": s.RUNNING}
    for _ in range(120):
        agents.world.tick()
    assert agents.world.states()["one"] == s.RUNNING
    assert len(agents.world.job("one").gpu_ids) == 1
    agents.report("n2", gpus("n2", 2))
    agents.pass_by(60, "n2")
    assert len(agents.world.job("one").gpu_ids) == 2


def test_a_node_whose_row_was_deleted_by_hand_is_written_again() -> None:
    nodes, report = NodeReports(FakeClock(), 1.0), NodeReport(boot="b", seq=1)
    nodes.keep_report("n", report)
    nodes.written("n", report)
    nodes.stored({"n": {}})
    assert nodes.changed() == {}
    nodes.stored({})
    assert nodes.changed() == {"n": report}


def test_after_a_change_of_coordinators_every_node_has_time_to_be_heard() -> None:
    clock = FakeClock()
    nodes = NodeReports(clock, 1.0)
    nodes.keep_report("n", NodeReport(boot="b", seq=1))
    nodes.written("n", NodeReport(boot="b", seq=1))
    assert nodes.changed() == {}
    clock.time += 100
    assert nodes.silent("n")
    nodes.begin()
    assert not nodes.silent("n") and not nodes.silent("never heard of")
    assert list(nodes.changed()) == ["n"], "another one may have written something else"
    docs = {"n": {"agent": True}, "here": {"agent": False}}
    clock.time += 100
    assert {name: doc.get("heard") for name, doc in nodes.as_heard(docs).items()} == {"n": False, "here": None}


def test_a_node_that_is_silent_for_a_day_is_forgotten_unless_a_job_has_its_gpus(agents: Agents) -> None:
    """Where a cluster scales itself each new machine has another name."""
    agents.report("n2")
    agents.report("n3")
    agents.world.tick()
    agents.world.users.update("gpus", "n3-0", {}, {"job_id": "one", "held_by": "one", "state": s.IN_USE})
    agents.world.tick(GONE_S + 1)
    agents.world.c.inventory.forget_nodes(agents.world.c.loop.inputs.nodes)
    agents.world.tick()
    assert agents.heard() == {"n1": True, "n3": False}
    agents.report("n2", boot="another")
    agents.world.tick()
    assert agents.heard()["n2"] and agents.known()["n2-0"] == ("n2", s.IDLE)


# how busy a node is, and whose jobs it has


def test_what_an_agent_measured_is_in_the_next_snapshot_and_in_no_store(agents: Agents) -> None:
    agents.report("n2", cpu_use=0.5, memory_use=0.25)
    agents.world.tick()
    writes = agents.world.store.writes
    agents.report("n2", cpu_use=0.75, memory_use=0.25)
    agents.world.c.loop.tick(read=False)
    assert agents.world.store.writes == writes
    (view,) = [node for node in agents.world.api.fleet.nodes() if node["node"] == "n2"]
    assert (view["cpu_use"], view["memory_use"]) == (0.75, 0.25)
    text = agents.world.api.status.metrics().decode()
    assert 'reshape_node_use_ratio{node="n2",resource="cpu"} 0.75' in text
    for share in (-0.1, 1.1):
        with pytest.raises(Rejected, match="shares from 0 to 1"):
            agents.report("n2", cpu_use=share)


def test_the_use_of_a_silent_node_is_not_believed_any_more(agents: Agents) -> None:
    agents.report("n2", cpu_use=0.5)
    agents.pass_by(AWAY_S + 1)
    (view,) = [node for node in agents.world.api.fleet.nodes() if node["node"] == "n2"]
    assert (view["cpu_use"], view["heard"], view["told"]) == (0.0, False, None)


def test_an_agent_is_told_its_jobs_and_says_them_again_and_what_it_says_changes_nothing(agents: Agents) -> None:
    agents.report("n2", [])
    agents.world.submit("one", [0], Behaviour(iterations=4_000), node="n2")
    agents.pass_by(10, "n2")
    reply = agents.report("n2", [], jobs=NodeJobs(7, 1, 2, 3))
    assert reply.jobs == NodeJobs(1, 1, 0, 0)
    (view,) = [node for node in agents.world.api.fleet.nodes() if node["node"] == "n2"]
    assert (view["jobs"], view["categories"], view["score"]) == (1, {"PC": 1, "WC": 0, "CC": 0}, 2.0)
    assert view["told"] == {"jobs": 7, "PC": 1, "WC": 2, "CC": 3}
    assert 'reshape_node_jobs{category="PC",node="n2"} 1.0' in agents.world.api.status.metrics().decode()


def test_whether_a_node_takes_pods_outlives_its_agents_reports(agents: Agents) -> None:
    agents.report("n2")
    agents.world.users.update("nodes", "n2", {}, {"schedulable": False})
    agents.report("n2", gpus("n2", 1))
    agents.world.submit("one", [1])
    agents.pass_by(3, "n2")
    (view,) = [node for node in agents.world.api.fleet.nodes() if node["node"] == "n2"]
    assert not view["schedulable"] and agents.world.states()["one"] == s.SUBMITTED
    agents.world.users.update("nodes", "n2", {}, {"schedulable": True})
    agents.pass_by(3, "n2")
    assert agents.world.job("one").node == "n2"


def test_a_job_whose_pod_was_drained_goes_to_another_node(agents: Agents) -> None:
    for node in ("n2", "n3"):
        agents.report(node, gpus(node, 1))
    agents.world.submit("one", [1], Behaviour(iterations=4_000))
    agents.pass_by(10, "n2", "n3")
    before = agents.world.job("one")
    other = "n3" if before.node == "n2" else "n2"
    agents.world.users.update("nodes", before.node, {}, {"schedulable": False})
    agents.pass_by(5, "n2", "n3")
    assert agents.world.job("one").node == before.node, "what runs there runs on"
    agents.world.machines.kill_shim("one")
    agents.pass_by(30, "n2", "n3")
    after = agents.world.job("one")
    assert (after.node, after.state, after.retries) == (other, s.RUNNING, before.retries)


# health


def test_an_unhealthy_gpu_is_faulty_until_it_is_healthy_whoever_has_it() -> None:
    store = MemoryStore()
    sick, well = FoundGpu("a", "V100", None, False, "it fell off the bus"), FoundGpu("a", "V100", None, False)
    register_node(store, FoundNode("n", (sick,)))
    assert _gpu(store)["state"] == s.FAULTY
    register_node(store, FoundNode("n", (well,)))
    assert (_gpu(store)["state"], _gpu(store)["problem"]) == (s.IDLE, "")
    for job, held, state in (("one", "one", s.IN_USE), ("one", None, s.RESERVED)):
        store.update("gpus", "a", {}, {"job_id": job, "held_by": held, "state": state})
        register_node(store, FoundNode("n", (sick,)))
        assert (_gpu(store)["state"], _gpu(store)["job_id"]) == (s.FAULTY, "one")
        register_node(store, FoundNode("n", (well,)))
        assert _gpu(store)["state"] == state


def test_one_that_somebody_called_faulty_by_hand_stays_so() -> None:
    store = MemoryStore()
    register_node(store, FoundNode("n", (FoundGpu("a", "V100", None, False),)))
    store.update("gpus", "a", {}, {"state": s.FAULTY})
    register_node(store, FoundNode("n", (FoundGpu("a", "V100", None, False),)))
    assert _gpu(store)["state"] == s.FAULTY


def _gpu(store: MemoryStore) -> dict[str, Any]:
    doc = store.get("gpus", "a")
    assert doc is not None
    return doc


def test_an_agent_of_another_version_of_the_protocol_is_said_once(
    agents: Agents, caplog: pytest.LogCaptureFixture
) -> None:
    agents.report()
    assert "protocol" not in caplog.text
    for _ in range(3):
        agents.report(version=2)
    agents.report("n3", version=0)
    said = [record.getMessage() for record in caplog.records if "protocol" in record.getMessage()]
    assert len(said) == 2
    assert said[0].startswith("Node agents report by version 2 of the protocol, and this coordinator knows version 1")
    assert "this coordinator is older than they" in said[0]
    assert "they are older than this coordinator" in said[1]
