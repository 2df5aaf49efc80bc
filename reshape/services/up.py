"""`reshape up`: coordinator, launcher and node agent in one process of this machine.

Jobs are not its children: they go on training when it ends, and it finds them again when it starts.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from adaptive_scheduler.settings import Settings
from coordinator.adapters.accounts import Callers
from coordinator.adapters.clock import SystemClock
from coordinator.adapters.sidecars import HttpSidecars
from coordinator.adapters.user_tokens import UserTokens
from coordinator.config import Config, from_environment
from coordinator.dashboard.words import listed
from coordinator.errors import Rejected, ReshapeError
from coordinator.events import traces
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.policies import POLICIES
from coordinator.scheduling.loop import Decide
from coordinator.scheduling.shares_file import FILE_NAME
from coordinator.service import Coordinator
from coordinator.stores.bootstrap import FoundNode, register_nodes, seed_profiles
from coordinator.stores.elector import Elector, Holder
from coordinator.stores.opening import SQLITE, open_store
from launcher.local import LocalPlatform
from launcher.local_spec import LocalSettings
from reshape import __version__
from reshape.client.connection import user_name, users_socket
from reshape.services import process_log
from reshape.services.detached import STOPS_S
from reshape.services.inventory import check_types, in_words, inventory
from reshape.services.local_gpus import LocalInventory, watch_gpus, with_problems
from reshape.services.machine_load import watch_load
from reshape.services.old_folders import watch_folders
from reshape.services.private_state import close_to_others, secret, write_private
from reshape.services.shared_state import check_shared, close_shared, problem_of_own_code, refuse_shared, user_socket
from reshape.services.store_folder import keep_to_folder
from reshape.services.up_log import keep_short
from sidecar import device_filter
from sidecar.resources.gpus import device_minors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from coordinator.http.shared_machine import SharedMachine

log = logging.getLogger(__name__)

KNOW_TYPES = ("speed_profiles", "gpus")  # tables that name GPU types

POLL_S = 0.1
FENCELESS = {"RESHAPE_FENCES": "0"}
"""Trainings go on for any time without a coordinator."""


@dataclass(frozen=True)
class Address:
    """Address and token of the API; written to `up.json` for the command line."""

    url: str
    token: str
    door: socket.socket | None = None  # of all users, where they share this `reshape up`


def run(
    *,
    state: Path,
    gpus: str | None,
    nodes: Sequence[str],
    store: str | None,
    port: int,
    host: str,
    policy: str,
    shared: bool = False,
    decide: Decide | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM. Raises `ReshapeError` with a sentence when it cannot start.

    `shared`: all users of this machine, each with rights and jobs of an own. `decide`: in place of the scheduler, for
    experiments.
    """
    process_log.begin("WARNING")
    if shared:
        check_shared(nodes, host)
        if sentence := problem_of_own_code():
            click.echo(f"Warning: {sentence}", err=True)
    state = state.expanduser().absolute()
    found = inventory(gpus, nodes)
    store = _absolute(store or "")
    config, settings = _settings(policy, state)
    with _alone(state), listen(host, port or _port_before(state)) as listener, ExitStack() as opened:
        for sentence in close_to_others(state):
            click.echo(f"Warning: {sentence}", err=True)
        (close_shared if shared else refuse_shared)(state)
        door = opened.enter_context(user_socket(users_socket())) if shared else None
        address = Address(_url(host, listener), secret(state / "api.token"), door)
        emulated = {node.name: node.cores for node in found if node.cores} if nodes else {}
        coordinator, platform = _build(state, store, address, found, emulated, config, settings)
        coordinator.loop.decide = decide
        look = LocalInventory(state) if any(not gpu.emulated for gpu in found[0].gpus) else None
        if look is not None:  # before anything is given to a job
            found = [with_problems(found[0], look())]
        end = threading.Event()
        try:
            coordinator.start(lambda: _begin_store(coordinator, state, found))
            if look is not None:
                _watch_gpus(found[0], coordinator, config.heartbeat_s, end, look)
            if config.other_processes and not nodes:
                _watch_load(found[0], coordinator, config.heartbeat_s, end)
            threading.Thread(target=keep_short, args=(state, end), name="log", daemon=True).start()
            old = state, coordinator.store, config.keep, coordinator.clock, end
            threading.Thread(target=watch_folders, args=old, name="folders", daemon=True).start()
            asyncio.run(_serve(state, coordinator, address, store, listener, found))
        finally:
            end.set()
            coordinator.stop()
            platform.stop_all(timeout=10.0)
            coordinator.store.close()
    return 0


def _begin_store(coordinator: Coordinator, state: Path, nodes: Sequence[FoundNode]) -> None:
    """Write what each store must hold; one that was emptied meanwhile gets it again."""
    store = coordinator.store
    keep_to_folder(store, state, coordinator.master_key)
    seed_profiles(store)
    register_nodes(store, nodes)


def _watch_gpus(
    node: FoundNode, coordinator: Coordinator, heartbeat_s: float, end: threading.Event, look: LocalInventory
) -> None:
    given = node, coordinator.telemetry.nodes, coordinator.look, heartbeat_s, end, look
    threading.Thread(target=watch_gpus, args=given, name="gpus", daemon=True).start()  # a driver can hang


def _watch_load(node: FoundNode, coordinator: Coordinator, heartbeat_s: float, end: threading.Event) -> None:
    given = node, coordinator.telemetry, coordinator.clock, heartbeat_s, end
    threading.Thread(target=watch_load, args=given, name="load", daemon=True).start()


def _absolute(store: str) -> str:
    """The same URL for whatever folder it is used in, as `reshape store` reads it from `up.json`. Empty stays empty."""
    name = store.removeprefix(SQLITE)
    return store if name in (store, "", ":memory:") else f"{SQLITE}{Path(name).absolute()}"


def _settings(policy: str, state: Path) -> tuple[Config, Settings]:
    if policy not in POLICIES:
        raise Rejected(f"--policy must be one of {', '.join(POLICIES)}, not {policy!r}.")
    for_config, for_settings = POLICIES[policy]
    try:
        defaults = FENCELESS | {"RESHAPE_SHARES": str(state / FILE_NAME), "RESHAPE_DEFAULT_OWNER": user_name()}
        config = from_environment(Config, defaults | os.environ, many_pods=False, **for_config)
        return config, from_environment(Settings, os.environ, **for_settings)
    except ValueError as error:
        raise Rejected(f"{error}.") from None


def _build(
    state: Path,
    store_url: str,
    address: Address,
    nodes: Sequence[FoundNode],
    node_cores: Mapping[str, float],
    config: Config,
    settings: Settings,
) -> tuple[Coordinator, LocalPlatform]:
    store = open_store(store_url or f"{SQLITE}{state / 'reshape.sqlite'}")
    seed_profiles(store)
    try:
        check_types(nodes, [str(row.get("gpu_type")) for table in KNOW_TYPES for row in store.list(table)])
    except Rejected:
        store.close()
        raise
    gpus = [gpu for node in nodes for gpu in node.gpus]
    clock, master_key = SystemClock(), secret(state / "master.key").encode()
    locks = os.environ.get("RESHAPE_GPU_LOCKS")
    real = bool(gpus) and not gpus[0].emulated
    shared = address.door is not None
    local = LocalSettings(
        gpus="nvml" if real else "emulated",
        gpu_minors=device_minors() if real else {},
        unfiltered=_unfiltered(shared) if real else "",
        gpu_memory=gpus[0].memory_total if gpus else None,
        gpu_locks=Path(locks) if locks else None,
        heartbeat_s=config.heartbeat_s,
        lease_s=config.granted_s(True),
        grace_s=config.grace_s,
        kill_s=config.kill_s,
        node_cores=node_cores,
        operator_token=None if shared else address.token,
        shared=shared,
    )
    platform = LocalPlatform(state, address.url, master_key, local)
    elector = Elector(store, clock, config.term_s, Holder.of_process(os.getpid()))
    coordinator = Coordinator(
        store,
        HttpSidecars(),
        platform,
        clock,
        config,
        settings,
        master_key,
        elector,
        __version__,
        failpoint(),
        traces=traces.from_environment(os.environ),
    )
    return coordinator, platform


def _unfiltered(shared: bool) -> str:
    """Return why jobs are not kept from other GPUs than theirs; empty where they are."""
    return "the jobs of a shared machine run without the rights of root" if shared else device_filter.unable()


def failpoint() -> Callable[[str], None]:
    """Return a hook that kills this process at the point named by RESHAPE_FAILPOINT (`after:stop`), for crash tests."""
    wanted = os.environ.get("RESHAPE_FAILPOINT")

    def reached(name: str) -> None:
        if name == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


async def _serve(
    state: Path,
    coordinator: Coordinator,
    address: Address,
    store: str,
    listener: socket.socket,
    nodes: Sequence[FoundNode],
) -> None:
    from coordinator.http.app import make_app, make_server

    users = _users(state, coordinator, address) if address.door is not None else None
    server = make_server(make_app(coordinator.services, address.token, users))
    server.add_sockets([listener, *([address.door] if address.door is not None else [])])
    told, hurried = _listen_to_signals()
    up_file = state / "up.json"
    about = {"url": address.url, "token": address.token, "store": store, "pid": os.getpid()}
    write_private(up_file, json.dumps(about))
    where = address.url if users is None else f"{users_socket()} for all users"
    click.echo(f"Reshape is up at {where} with {in_words(nodes)}. Ctrl-C stops it; running jobs keep training.")
    click.echo("See it in a browser: `reshape dashboard`, in another terminal, prints a link.")
    sys.stdout.flush()
    await told.wait()
    await _end_stops(coordinator, hurried)
    server.stop()
    await server.close_all_connections()
    _outlive_sigterm()


def _users(state: Path, coordinator: Coordinator, address: Address) -> SharedMachine:
    """Return what is known of the users who share this `reshape up`."""
    from coordinator.http.shared_machine import SharedMachine

    return SharedMachine(
        Callers(coordinator.config.others_seen),
        UserTokens(state / "tokens.json"),
        address.url,
        SystemClock(),
    )


def _listen_to_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return an event for the first SIGINT or SIGTERM, and one for a SIGINT that comes after it.

    A further SIGTERM is another `reshape down`, which waits as the first one does.
    """
    told = asyncio.Event()
    hurried = asyncio.Event()

    def interrupted() -> None:
        (hurried if told.is_set() else told).set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, told.set)
    loop.add_signal_handler(signal.SIGINT, interrupted)
    return told, hurried


def _outlive_sigterm() -> None:
    """Let no further `reshape down` end this process before it has tidied up: the loop would leave SIGTERM deadly."""
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: None)


async def _end_stops(coordinator: Coordinator, hurried: asyncio.Event) -> None:
    """Wait until the jobs that were told to end have ended: nobody else would end them. Not if `hurried`."""
    until = time.monotonic() + coordinator.config.grace_s + STOPS_S
    said = False
    while not hurried.is_set() and time.monotonic() < until:
        ending = being_stopped(coordinator.cache.jobs().values())
        if not ending:
            break
        if not said:
            click.echo(
                f"Waiting for {listed(ending)} to stop, as requested. Press Ctrl-C again to leave without waiting."
            )
            sys.stdout.flush()
        said = True
        await asyncio.sleep(POLL_S)


def being_stopped(jobs: Iterable[JobRecord]) -> list[str]:
    """Return the jobs that were told to end, by their user or by what they reached, and have not."""
    return sorted(job.id for job in jobs if job.launch and not job.doc.get("closed") and _ends(job))


def _ends(job: JobRecord) -> bool:
    operation = job.operation
    return job.cancel or job.state in s.ENDED or (operation is not None and operation.kind in ("requeue", "finish"))


@contextmanager
def _alone(state: Path) -> Iterator[IO[str]]:
    """Hold the lock that allows one `reshape up` per state folder. Raises `Rejected` if another one runs."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.fdopen(os.open(state / "up.lock", os.O_RDWR | os.O_CREAT, 0o600), "w")
        # Whoever may read it may lock it, and keep this user's `reshape up` from starting.
        os.fchmod(lock.fileno(), 0o600)
    except OSError as error:
        raise Rejected(f"The state folder {state} cannot be used: {error.strerror}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Rejected(f"`reshape up` already runs with the state folder {state}.") from None
        yield lock


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server((host, port), backlog=128)
    except (OSError, TypeError) as error:  # TypeError: what no host's name can hold
        raise Rejected(_cannot_listen(host, port, error)) from None
    with listener:
        listener.setblocking(False)
        yield listener


def _cannot_listen(host: str, port: int, error: OSError | TypeError) -> str:
    number = error.errno or 0 if isinstance(error, OSError) else -1
    if number < 0 or number == errno.EADDRNOTAVAIL:  # below 0: the name is not known
        return f"--host {host} is not an IPv4 address or name of this machine: give one, such as 127.0.0.1."
    return f"Cannot listen on {host} port {port}: {os.strerror(number)}; choose another --port."


def _url(host: str, listener: socket.socket) -> str:
    """Return the URL for the command line and sidecars of this machine; warn if other machines reach it, too."""
    name, port = listener.getsockname()
    address = ipaddress.ip_address(name)
    if not address.is_loopback:
        click.echo(
            f"Warning: other machines can reach this coordinator on {name}, and nothing is encrypted: an eavesdropper "
            "can read the token and act as an operator.",
            err=True,
        )
    return f"http://{'127.0.0.1' if address.is_unspecified else host}:{port}"


def _port_before(state: Path) -> int:
    """Return the port of the last run, because running sidecars report there; 0 (any) if it is unknown or in use."""
    try:
        port = int(json.loads((state / "up.json").read_text())["url"].rpartition(":")[2])
        socket.create_server(("127.0.0.1", port)).close()
    except (OSError, ValueError, KeyError):
        return 0
    return port


__all__ = ["ReshapeError", "run"]
