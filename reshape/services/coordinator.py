"""Runs `reshape coordinator`: one of a cluster's replicas, of which one acts and the others stand by.

Promises: listens at once and is alive (`/livez`) while it waits for its store or its turn, ready (`/readyz`) only
while it acts. A successor starts from the store alone. SIGTERM ends the term before anything else, so
that a successor acts at once; after a crash it acts once the term has run out. Launches go through the table
`launches`, which the launcher carries out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from adaptive_scheduler.settings import Settings
from coordinator.adapters.clock import SystemClock
from coordinator.adapters.launches import Launches
from coordinator.adapters.prometheus import Prometheus
from coordinator.adapters.sidecars import HttpSidecars
from coordinator.api.services import Services
from coordinator.config import Config, from_environment
from coordinator.errors import Rejected, ReshapeError, Transient
from coordinator.events import metrics, traces
from coordinator.http.app import make_app, make_server
from coordinator.http.cluster_tenants import ClusterTenants
from coordinator.http.heartbeats.heartbeat_process import heartbeat_process
from coordinator.service import Coordinator
from coordinator.stores.bootstrap import seed_profiles
from coordinator.stores.elector import Elector, Holder
from coordinator.stores.opening import MONGODB, open_store
from launcher.cluster.api import IN_CLUSTER, KubernetesApi
from launcher.cluster.reviews import KubernetesReviews
from launcher.names import launch_name
from reshape import __version__
from reshape.services import process_log
from reshape.services.up import failpoint, listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from tornado.web import Application

    from coordinator.ports import Measurements, Store

SIDECAR_PORT = 8477  # where sidecars in pods answer
LOOK_S = 1.0  # how often one that stands by looks whether its turn has come, at most
STANDS_BY = "This coordinator stands by; ask the one that acts."

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Keys:
    """The secrets of a cluster's coordinators, each in a file of one folder."""

    master: bytes
    token: str
    agent: bytes

    @classmethod
    def read(cls, folder: Path) -> Keys:
        """Read the keys. Raises `Rejected`, with the name of a file that is missing."""
        master, token, agent = (_key(folder / name) for name in ("master.key", "api.token", "agent.key"))
        return cls(master.encode(), token, agent.encode())


def run(*, store: str, keys: Path, host: str, port: int) -> int:
    """Serve until SIGTERM or SIGINT. Raises `ReshapeError` with a sentence where it cannot start."""
    process_log.begin()
    logging.getLogger("tornado").setLevel(logging.WARNING)
    if not store.startswith(MONGODB):
        raise Rejected(
            "On a cluster the store must be MongoDB, since replicas and launcher on other machines share it: set "
            "RESHAPE_STORE to mongodb://HOST/NAME. SQLite is for `reshape up`, which has everything in one process."
        )
    config, settings = settings_from(os.environ)
    found = Keys.read(keys)
    opened = open_store(store)
    try:
        with listen(host, port) as listener:
            replica = CoordinatorReplica(opened, found, config, settings)
            tenants = tenants_of(config, os.environ)
            return asyncio.run(_serve(replica, listener, found.token, tenants))
    finally:
        opened.close()


def settings_from(environment: Mapping[str, str]) -> tuple[Config, Settings]:
    """Read the settings from RESHAPE_* variables. Raises `Rejected`, with the name of one with a bad value."""
    try:
        lasts = bool(environment.get("RESHAPE_CHECKPOINT_CLAIM"))  # the launcher mounts it
        chosen = {"RESHAPE_OTHERS_SEEN": "0", **environment}
        config = from_environment(Config, chosen, checkpoints_last=lasts, fences=True)
        return config, from_environment(Settings, environment)
    except ValueError as error:
        raise Rejected(f"{error}.") from None


def tenants_of(config: Config, environment: Mapping[str, str]) -> ClusterTenants | None:
    """Return what is known of the users of the cluster; None where this runs without an account of one."""
    if not IN_CLUSTER.exists():
        log.info("This runs without a service account of a cluster: only the token in api.token lets anybody in.")
        return None
    namespace = environment.get("RESHAPE_NAMESPACE", "default")
    reviews = KubernetesReviews(KubernetesApi())
    return ClusterTenants(reviews, config.others_seen, namespace, SystemClock().now)


async def _serve(turns: CoordinatorReplica, listener: socket.socket, token: str, tenants: ClusterTenants | None) -> int:
    done, loop = asyncio.Event(), asyncio.get_running_loop()
    app = make_app(cast(Services, STANDBY), token, tenants=tenants)
    server = make_server(app)
    port = listener.getsockname()[1]
    server.add_sockets([listener])  # which takes the descriptor over
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    turning = threading.Thread(
        target=turns.run, args=(app, lambda: loop.call_soon_threadsafe(done.set)), name="turns", daemon=True
    )
    turning.start()
    async with heartbeat_process(app):
        log.info("listens on port %d", port)
        await done.wait()
        turns.ending.set()
        await asyncio.to_thread(turning.join)
    server.stop()
    await server.close_all_connections()
    return turns.status


class CoordinatorReplica:
    """Waits for the term and acts while it holds the term, repeatedly, until `ending` is set."""

    def __init__(self, store: Store, keys: Keys, config: Config, settings: Settings) -> None:
        self._store, self._keys, self._config, self._settings = store, keys, config, settings
        self._clock = SystemClock()
        self.ending = threading.Event()
        self.status = 0  # of the process, once it has ended

    def run(self, app: Application, ended: Callable[[], None]) -> None:
        """Point `app` at the coordinator of each term; call `ended` after a fault, so that the process is restarted."""
        try:
            while (elector := self._take_the_term()) is not None:
                self._act(app, elector)
        except Exception:
            log.exception("the coordinator has failed")
            self.status = 1
            ended()

    def _take_the_term(self) -> Elector | None:
        """Wait for the term; None if the replica is to end first."""
        me = Holder.of_process(os.getpid())
        elector, told = Elector(self._store, self._clock, self._config.term_s, me), ""
        while not self.ending.is_set():
            try:
                if elector.try_to_lead():
                    return elector
                why = f"Another coordinator ({elector.holder()}) acts; standing by."
            except Transient as error:
                why = f"The store does not answer, waiting for it: {error}"
            if why.partition(":")[0] != told.partition(":")[0]:
                log.info("%s", why)
                told = why
            self.ending.wait(min(LOOK_S, self._config.term_s / 10))
        return None

    def _act(self, app: Application, elector: Elector) -> None:
        """Act until another replica leads or this one is to end; if the start fails, wait before the next try."""
        coordinator = None
        try:
            coordinator = self._coordinator(elector)
            coordinator.start(lambda: seed_profiles(self._store))
            app.settings["services"] = coordinator.services
            log.info("This coordinator acts now.")
            while not (self.ending.wait(0.1) or coordinator.succeeded.is_set()):
                pass
        except ReshapeError as error:
            log.warning("could not begin to act: %s", error)
            self.ending.wait(LOOK_S)
        finally:
            app.settings["services"] = STANDBY
            if coordinator is not None:
                coordinator.stop()

    def _coordinator(self, elector: Elector) -> Coordinator:
        """Return a new coordinator for each term, because the memory of an earlier term is outdated."""
        sidecars, keys = HttpSidecars(), self._keys
        about = keys.master, SIDECAR_PORT, launch_name, self._clock, self._config.checkpoints_last
        platform = Launches(self._store, sidecars, *about)
        return Coordinator(
            self._store,
            sidecars,
            platform,
            self._clock,
            self._config,
            self._settings,
            keys.master,
            elector,
            __version__,
            failpoint(),
            keys.agent,
            self._measurements(platform),
            traces.from_environment(os.environ),
            launcher_tells=True,
            pods_of=platform.pods_by_member,
        )

    def _measurements(self, launches: Launches) -> Measurements | None:
        address = self._config.prometheus
        return Prometheus(address, launches.pods, launches.all_pods) if address else None


class StandbyStatus:
    """Says that this coordinator stands by."""

    def acts(self) -> bool:
        return False

    def health(self) -> dict[str, Any]:
        return {"ok": False, "sentence": "This coordinator stands by until the one that acts is gone."}

    def metrics(self) -> bytes:
        return metrics.of_this_process()

    def wall(self) -> float:
        raise Transient(STANDS_BY)


class StandbyServices:
    """Stands in for `Services` while this coordinator stands by: asking for any but its status is `Transient`."""

    status = StandbyStatus()

    def __getattr__(self, name: str) -> Any:
        raise Transient(STANDS_BY)


STANDBY = StandbyServices()


def _key(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise Rejected(f"The key {path} cannot be read: {error.strerror}; `reshape setup` makes it.") from None
    if len(text) < 16:
        raise Rejected(f"The key {path} is too short to be one; `reshape setup` makes a good one.")
    return text
