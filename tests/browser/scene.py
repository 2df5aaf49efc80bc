"""Coordinators with something to see, and how a tab comes in. Not a test."""

from __future__ import annotations

import math
from array import array

from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from coordinator.telemetry.gpu_use import QUARTER_S, SHOWN, TABLE, Quarter
from tests.api.caller import Caller
from tests.browser.chrome import Chrome
from tests.fakes.coordinator_api import Live
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

SECOND_NODE = FoundNode("n2", tuple(FoundGpu(f"p100-{i}", "P100", None, True) for i in range(4)))
USERS = ("mia", "jan", "noor", "li", "ada", "tom")
EVIL = "<script>window.ran=1</script><img src=x onerror='window.ran=1'>"


def log_in(tab: Chrome, live: Live) -> None:
    """By a one-time link, as people do; the tab then shows the fleet."""
    tab.open(live.url + Caller(live)("POST", "/v1/logins").doc["path"])
    tab.until("location.pathname === '/' && document.readyState === 'complete'")


def go(tab: Chrome, live: Live, path: str) -> None:
    """Open a page, and wait until it is live."""
    tab.open(live.url + path)
    tab.until("document.getElementById('live').textContent === 'live'")


def busy() -> World:
    """Two nodes with 12 GPUs and jobs that train, one of them reshaped, that start, wait, ended or were refused."""
    world = World(gpus=8, nodes=[SECOND_NODE])
    loss = Behaviour(iterations=6_000, value=2.3, value_name="loss", busy=0.8)
    world.submit("resnet50-imagenet", [1, 2, 4], loss, owner="mia")
    world.submit("bert-large-finetune-squad", [2, 4], Behaviour(iterations=6_000, busy=0.4))
    world.submit("vgg", [1], Behaviour(iterations=6_000), elastic=False)
    world.submit("short", [1], Behaviour(iterations=30))
    world.run(lambda w: w.states().get("short") == s.COMPLETED)
    for _ in range(12):
        world.pass_time(4.0)
        loss.value = 0.2 + ((loss.value or 0.0) - 0.2) * 0.85
    for name, count in (
        ("resnet50-imagenet", 2),
        ("bert-large-finetune-squad", 4),
        ("bert-large-finetune-squad", 2),
        ("resnet50-imagenet", 4),
    ):
        world.api.operator.request(name, count, None)
        world.run(lambda w, name=name, count=count: len(w.job(name).gpu_ids) == count)
    world.api.operator.request("resnet50-imagenet", None, None)
    world.pass_time(20.0)
    world.api.operator.request("bert-large-finetune-squad", None, None)
    for number in range(4):
        world.submit(f"later-{number}", [8], Behaviour(iterations=6_000), sla="30s" if number == 2 else None)
    world.users.insert("jobs", {"_id": "odd", "job_id": "odd", "state": "submitted", "num_gpus": "many"})
    world.users.insert("jobs", {"_id": EVIL, "job_id": EVIL, "state": "submitted", "message": EVIL})
    world.submit("newcomer", [1], Behaviour(iterations=6_000))
    world.machines.outputs["resnet50-imagenet"] = b"".join(
        b"step=%d total=6000 loss=%.4f\n" % (n, 2.3 * 0.99**n) for n in range(400)
    )
    world.tick()
    world.tick()
    add_a_day(world)
    world.c.forecaster.update()
    return world


def add_a_day(world: World) -> None:
    """Store what a coordinator of yesterday would have: a working day, and an hour in which it was away."""
    gpus = world.c.cache.gpus().values()
    nodes = sorted({gpu.node for gpu in gpus})
    last = int(world.clock.wall() // QUARTER_S)
    for ago in range(1, SHOWN):
        if 40 <= ago < 44:
            continue
        held = 0.55 + 0.4 * math.sin(ago / 15)
        measured = [held * QUARTER_S * len(gpus) / len(nodes)] * len(nodes)
        busy = [seconds * (0.9 - 0.7 * (place % 3 == 0)) for place, seconds in enumerate(measured)]
        quarter = Quarter(
            last - ago,
            QUARTER_S * len(gpus),
            held * QUARTER_S * len(gpus),
            nodes,
            array("d", measured),
            array("d", busy),
        )
        world.store.put(TABLE, quarter.document())
    world.c.telemetry.gpu_use.flush()


def fleet(nodes: int) -> World:
    """Nodes of eight GPUs, on most of which jobs of six users train; some wait."""
    found = [
        FoundNode(f"node-{n}", tuple(FoundGpu(f"node-{n}-gpu-{i}", "A100", 80 << 30, True) for i in range(8)))
        for n in range(nodes)
    ]
    world = World(gpus=0, nodes=found)
    for number in range(2 * nodes + 4):
        count = (1, 2, 4, 8)[number % 4]
        counts = [count] if number % 3 else sorted({count // 2 or 1, count})
        world.submit(
            f"{('resnet50', 'bert-large', 'vit-sweep-lr', 'llama')[number % 4]}-{number}",
            counts,
            Behaviour(iterations=50_000, value=2.0, value_name="loss", busy=0.3 + 0.1 * (number % 7)),
            owner=USERS[number % len(USERS)],
        )
    world.run(lambda w: sum(state == s.RUNNING for state in w.states().values()) >= nodes)
    for number in range(12):  # all for one node, so that most of them wait
        waits = Behaviour(iterations=50_000)
        world.submit(f"waits-{number}", [8], waits, owner=USERS[number % len(USERS)], node="node-0")
    world.pass_time(30.0)
    add_a_day(world)
    world.c.forecaster.update()
    return world


def lab() -> World:
    """Twelve nodes: 96 GPUs."""
    return fleet(12)


def centre() -> World:
    """125 nodes: 1,000 GPUs."""
    return fleet(125)
