"""Runs the launcher's process (`reshape launcher`): launches on a cluster and the API server's webhook.

Ends at SIGTERM or SIGINT; launches go on without it. Waits for a store that does not answer yet, with a line in the
log. Called by `reshape.cli.cluster_verbs`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from coordinator.adapters.clock import SystemClock
from coordinator.errors import Transient
from coordinator.ports import Store
from coordinator.stores.elector import Elector, Holder
from coordinator.stores.opening import open_store
from launcher.admission.inject import PodSettings
from launcher.admission.webhook import Injector, make_server
from launcher.cluster import config
from launcher.cluster.api import KubernetesApi
from launcher.cluster.config import LauncherSettings
from launcher.cluster.controllers.admission import PodDecisionLookup
from launcher.cluster.launch_service import LaunchService

TERM = "launcher"
LOOK_S = 10.0  # how often the certificate's files are looked at
WAIT_S = 2.0
DEEPEST = 20_000  # recursion limit: the API server takes objects nested 10,000 deep, and lists must still be read

log = logging.getLogger(__name__)


def run(environment: Mapping[str, str], playbooks: Path) -> int:
    """Serve until a signal arrives; return the exit status. `ReshapeError` with a sentence if it cannot start."""
    settings, pods = config.read(environment)
    sys.setrecursionlimit(DEEPEST)
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    store, cluster = open_store(settings.store), KubernetesApi()
    _wait_for(store, done)
    service = _service(settings, pods, store, cluster, playbooks)
    service.start()
    try:
        asyncio.run(_serve(settings, pods, store, service, done))
    finally:
        service.stop()
        store.close()
    return 0


def _service(
    settings: LauncherSettings, pods: PodSettings, store: Store, cluster: KubernetesApi, playbooks: Path
) -> LaunchService:
    clock = SystemClock()
    master_key = _master_key(settings)
    elector = Elector(store, clock, settings.term_s, Holder.of_process(os.getpid()), TERM)
    return LaunchService(
        store,
        cluster,
        clock,
        elector,
        pods,
        master_key,
        settings.namespaces,
        playbooks,
        Path(settings.workdir),
        settings.launch_timeout_s,
        settings.registries,
    )


def _master_key(settings: LauncherSettings) -> bytes:
    return config.secret(Path(settings.keys) / config.MASTER_KEY).encode()


def _wait_for(store: Store, done: threading.Event) -> None:
    """Wait until the store answers: a database that starts at the same time takes longer."""
    told = False
    while not done.is_set():
        try:
            store.get("terms", TERM)
            return
        except Transient as error:
            if not told:
                log.warning("Waiting for the store: %s", error)
                told = True
            done.wait(WAIT_S)


async def _serve(
    settings: LauncherSettings, pods: PodSettings, store: Store, service: LaunchService, done: threading.Event
) -> None:
    told = ThreadPoolExecutor(1, "events")

    def report(namespace: str, owner: Mapping[str, Any], reason: str, sentence: str) -> None:
        meta = {"name": owner["name"], "namespace": namespace, "uid": owner.get("uid")}
        about = {"apiVersion": owner.get("apiVersion"), "kind": owner.get("kind"), "metadata": meta}
        told.submit(service.events.write, about, reason, sentence, warning=True)

    tls = ReloadedCertificate(Path(settings.tls)) if settings.tls else None
    if tls is not None:
        injector = Injector(
            pods,
            PodDecisionLookup(store, service.queues_of_volcano),
            report,
            service.metrics.admission,
            _master_key(settings),
        )
        server = make_server(injector, tls.context, lambda: service.ready, service.metrics.text)
        server.listen(settings.webhook_port)
    looked = 0.0
    while not done.is_set():
        await asyncio.sleep(0.2)
        looked += 0.2
        if tls is not None and looked >= LOOK_S:
            looked = 0.0
            tls.renew()
    told.shutdown(wait=False, cancel_futures=True)


class ReloadedCertificate:
    """The webhook's certificate; `renew` loads a newer one from the files for new connections."""

    def __init__(self, folder: Path) -> None:
        """OSError if the files are missing or hold no certificate and key."""
        self._folder = folder
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._seen = self._times()
        self._load()

    def renew(self) -> None:
        """Load changed files. Keeps the present certificate if they do not fit: they may be half replaced."""
        try:
            if (times := self._times()) != self._seen:
                self._load()
                self._seen = times
                log.info("the webhook's certificate was renewed")
        except OSError as error:
            log.warning("the webhook's certificate cannot be read again: %s", error)

    def _load(self) -> None:
        self.context.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")

    def _times(self) -> tuple[float, ...]:
        return tuple((self._folder / name).stat().st_mtime for name in ("tls.crt", "tls.key"))
