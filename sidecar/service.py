"""Runs one sidecar: feeds events to `core.step` and carries out its instructions.

Promises: stateless, so a restarted sidecar continues the work; the event loop never waits for a disk, a driver or the
coordinator, so a hang in any of them cannot keep a lease from being renewed. Started by `__main__.py`; the endpoints
(`endpoints/server.py`) read its state and use its connection to the shim.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sidecar import core
from sidecar.checkpoints import CheckpointWatch
from sidecar.config import SidecarSettings
from sidecar.links.coordinator_link import CoordinatorLink, CoordinatorRejected, NoTrustedAnswer
from sidecar.links.shim_link import ShimLink, ShimUnreachable, announced
from sidecar.output.progress import LINE_LIMIT, ProgressReader
from sidecar.output.tail import PIECE, LogTail
from sidecar.protocol import (
    Checkpoint,
    GpuHolder,
    GpuReading,
    Heartbeat,
    HeartbeatReply,
    OperatorRequest,
    ShimStatus,
    Usage,
)
from sidecar.resources import limits
from sidecar.resources.gpu_health import HangWatch
from sidecar.resources.gpu_release import ReleaseProof
from sidecar.resources.gpus import GpuProbe, probe_for
from sidecar.resources.usage import UsageMeter, processor_seconds
from sidecar.resources.usage import cpu_quota as own_quota
from sidecar.source_watch import PodSourceWatch, SourceWatch
from sidecar.startup import log_format, preflight

log = logging.getLogger("sidecar")

LOOK_S, CALM_LOOK_S = 1.0, 10.0  # the output is read at least this often; when the shim reports all that matters
WATCH_S, WATCH_SHARE = 2.0, 0.05  # pause while no hook or checkpoint is known; share of time that checks may take
SOURCE_S = 2.0  # to check the files of the training's code
FAREWELL_S = 2.0  # for the last heartbeat once told to end
SILENT = "NVML does not answer any more: check the NVIDIA driver of this machine"


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Sample:
    """The last measurement; `at` is in seconds of CLOCK_BOOTTIME."""

    at: float
    usage: Usage = field(default_factory=Usage)
    gpus: tuple[GpuReading, ...] = ()


class Sidecar:
    """One sidecar: its state, connections and measurements."""

    def __init__(self, settings: SidecarSettings, url: str) -> None:
        """Set up a sidecar; `url` is that of its endpoints."""
        launch = settings.launch
        self.settings, self.url = settings, url
        # Sequence numbers start from the clock, so no recorded answer to an earlier sidecar process matches.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._boot = f"{boot}/{launch.pod_uid}" if launch.pod_uid else boot
        self.state = core.SidecarState(heartbeat_s=launch.heartbeat_s, seq=int(boottime() * 1000))
        self.shim = ShimLink(settings.folder, self._shim_reported, self._output_grew, self._shim_disconnected)
        self.reader = ProgressReader(settings.pattern, settings.progress.measure, settings.progress.never)
        self.sample = Sample(boottime())
        self.sent, self.failed = 0, 0  # heartbeats, for the metrics
        self._checkpoints = CheckpointWatch(settings.checkpoints, launch.job_id) if settings.checkpoints else None
        self._source: SourceWatch | PodSourceWatch = SourceWatch((), ".")
        self.edited = list[str]()
        self._coordinator = CoordinatorLink(settings)
        self._tail = LogTail(Path(launch.output))
        self._reading, self._read_at = asyncio.Lock(), 0.0
        self._met = False  # whether the shim has said what runs: until then the output cannot be dated
        self._unfit = ""  # as `preflight` says
        self._late = True  # until the output has been read to its end once
        self._unread: core.NewGeneration | None = None  # its output starts somewhere in what is still unread
        self._file_seen = b""
        self._probe: GpuProbe = probe_for(launch.gpus, launch.gpu_memory)
        self._driver = HangWatch(max(LOOK_S, launch.heartbeat_s))
        self.meter = UsageMeter(network=launch.pod and launch.port != 0)  # else it would count the machine's traffic
        self._limiter = limits.for_launch(settings.folder.name, launch.pod)
        self._limit = core.LimitCpu(None, 0.0)
        self._sampler = ThreadPoolExecutor(1, "sample")
        self.release = ReleaseProof(self._probe, self._sampler)
        self._running: set[asyncio.Task[None]] = set()
        self._wakes_at, self._under_way = 0.0, 0  # the timer; tasks under way before the next heartbeat
        self._leaving, self._measure_now = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Work until `end`. An error ends the process; the shim starts another one."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timer = self._loop.call_soon(self._wake)
        work = (self.shim.run(), self._watch(), self._watch_source(), self._measure(), self._farewell())
        running = [self._ended, *(asyncio.create_task(one) for one in work)]
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for one in running:
            one.cancel()
        self._timer.cancel()
        await self._loop.run_in_executor(self._sampler, self._limiter.hold, None, None)
        for one in done:
            one.result()

    def end(self) -> None:
        """Send what the coordinator has not received yet, then let `run` return."""
        self._leaving.set()

    async def _farewell(self) -> None:
        await self._leaving.wait()
        until = boottime() + FAREWELL_S
        try:  # the shim ends us as soon as it learns of the trainer's end
            await self.shim.ask({"do": "status"}, FAREWELL_S)
        except ShimUnreachable:
            pass
        while not core.settled(self.state) and boottime() < until:
            await asyncio.sleep(0.02)

    def heartbeat(self, shim: ShimStatus, seq: int) -> Heartbeat:
        """Return a heartbeat with everything known and the given shim status."""
        launch, saved = self.settings.launch, core.newest_save(self.state, shim)
        return Heartbeat(
            job_id=launch.job_id,
            launch=launch.launch,
            member=launch.member,
            seq=seq,
            url=self.url,
            sidecar_pid=os.getpid(),
            boot=self._boot,
            shim=shim,
            progress=self.reader.progress,
            gpus=self._readings(shim),
            usage=self.sample.usage,
            checkpoint=self.state.checkpoint,
            checkpoint_at=self.reader.saved.get(saved.name) if saved else None,
            checkpoint_bytes=self._checkpoints.size if self._checkpoints else 0,
            emulated=self._probe.emulated,
            unfit=shim.unfit or self._unfit,
            hook=self.state.hook,
            withdrawn=self.state.withdrawn,
            lost=self.reader.lost,
            edited=self.edited,
        )

    async def forward_request(self, gpus: int | None, signal: str | None, force: bool = False) -> bytes:
        """Forward an operator's request to the coordinator; return its answer. Raises as `CoordinatorLink.post`."""
        launch, seq = self.settings.launch, int(boottime() * 1e6)
        request = OperatorRequest(
            job_id=launch.job_id, launch=launch.launch, seq=seq, gpus=gpus, signal=signal, force=force
        )
        return await self._coordinator.post("/v1/wishes", msgspec.json.encode(request))

    # events

    def handle(self, event: core.Event) -> None:
        before, (self.state, instructions) = self.state, core.step(self.state, event)
        for instruction in instructions:
            self._carry_out(instruction)
        if self.settings.apart and core.leaving(self.state):
            self.shim.leave()
        if self.state is not before:
            self._set_timer()

    def _shim_reported(self, status: ShimStatus) -> None:
        self.handle(core.ShimReported(boottime(), status))
        self._met = True

    def _shim_disconnected(self) -> None:
        self.handle(core.ShimDisconnected(boottime()))

    def _output_grew(self, at: float | None) -> None:
        self._start(self._read(at))

    # instructions

    def _carry_out(self, instruction: core.Instruction) -> None:
        match instruction:
            case core.SendHeartbeat():
                self._start(self._send(instruction))
            case core.RenewLease():
                self.shim.tell({"do": "renew", "deadline": instruction.deadline})
            case core.LimitCpu():
                changed = instruction.cores != self._limit.cores
                self._limit = instruction
                if changed:
                    self._measure_now.set()
            case core.EndShim():
                log.warning("the coordinator knows no such launch any more: training stops and this launch ends")
                self.shim.tell({"do": "end"} | ({"exit_code": 0} if instruction.completed else {}))
            case core.InspectEnd():
                self._start(self._inspect(instruction.end))
            case core.NewGeneration():
                self._new_generation(instruction)

    def _new_generation(self, begun: core.NewGeneration) -> None:
        """Begin another trainer's output; all earlier output has been read, unless this sidecar started later."""
        log_format.identify(generation=begun.generation)
        self._source, self.edited = self._source_watch(), []
        self._start(self._know_source(boottime() - begun.spawn_at))
        self.reader.new_generation(begun.spawn_at)
        if self._late and self.settings.progress_file is None:
            self._unread = begun
        else:
            self.reader.new_output(begun.generation)

    def _source_watch(self) -> SourceWatch | PodSourceWatch:
        """Return what watches whether the code of the new trainer is edited."""
        launch, folder = self.settings.launch, self.settings.folder
        if launch.pod:
            return PodSourceWatch(folder)
        return SourceWatch([str(word) for word in launch.command or ()], launch.workdir or ".", folder / "launch.json")

    async def _send(self, beat: core.SendHeartbeat) -> None:
        body = msgspec.json.encode(self.heartbeat(beat.shim, beat.seq))
        self.sent += 1
        try:
            reply = msgspec.json.decode(await self._coordinator.post("/v1/heartbeats", body), type=HeartbeatReply)
        except (NoTrustedAnswer, CoordinatorRejected, msgspec.MsgspecError) as error:
            self.failed += 1
            if self.state.failures == 0:
                log.warning("heartbeats fail, training goes on until the lease ends: %s", error)
            self.handle(core.HeartbeatFailed(boottime(), random.random()))
        else:
            if self.state.failures:
                log.info("heartbeats are answered again")
            self.handle(core.HeartbeatAnswered(boottime(), reply))

    async def _inspect(self, end: core.TrainerEnd) -> None:
        found: Checkpoint | None = None
        try:
            if end[1] is None:  # nothing was started yet: the coordinator must know before it frees GPUs for it
                self._unfit = await self._judge()
            await self._read(None)
            self.reader.flush(boottime(), self._late)
            await self._count_passed_over()
            if self._checkpoints is not None:
                found, problems = await asyncio.to_thread(self._checkpoints.find_newest)
                for problem in problems:
                    log.warning("%s", problem)
                if found is not None:
                    self.reader.saved_step(found.name, found.step)
            for held in await self.release.wait(self.holder) if end[1] is not None else ():
                log.warning("%s", held)
        except Exception:  # an end that is never reported would hold the job and its GPUs forever
            log.exception("output or checkpoints could not be read; the end is reported without them")
        self.handle(core.EndInspected(boottime(), end, found))

    async def _count_passed_over(self) -> None:
        """Look for the trainer's last step in output that came faster than it could be read."""
        if self._tail.passed_over and self.settings.progress_file is None:
            async with self._reading:
                await asyncio.to_thread(self.reader.find_newest_count, self._tail.backwards(), boottime())

    @property
    def holder(self) -> GpuHolder | None:
        """Return the process that holds GPU memory between two trainers, if any."""
        return self.state.shim.holder if self.state.shim else None

    async def _judge(self) -> str:
        launch = self.settings.launch
        if launch.pod or not launch.command:
            return ""
        env = preflight.environment(os.environ, launch.env, launch.hooks)
        return await preflight.startup_fault([str(word) for word in launch.command], env, launch.workdir or ".")

    # what is read and measured

    def _set_timer(self) -> None:
        """Set the timer to wake when output is to be read or a heartbeat is due."""
        idle = self.state.shim is None or self.state.sent_at is not None
        at = self._look_at() if idle else min(self._look_at(), self.state.due_at)
        if at != self._wakes_at:
            self._wakes_at = at
            self._timer.cancel()
            self._timer = self._loop.call_later(at - boottime(), self._wake)

    def _look_at(self) -> float:
        # Nobody notifies us of a progress file or an announcement.
        told = self.settings.progress_file is None and self.state.hook and self.state.first_step_at is not None
        return self._read_at + (CALM_LOOK_S if told else LOOK_S)

    def _wake(self) -> None:
        self._wakes_at = 0.0
        try:
            if boottime() >= self._look_at():
                self._read_at = boottime()
                self._start(self._read(None))
            self.handle(core.TimerFired(boottime()))
            self._set_timer()
        except Exception as fault:  # ends this process
            self._ended.set_exception(fault)

    async def read_on(self) -> None:
        """Read to the end before another trainer prints, so that earlier output is not attributed to it.

        Reopens the file first, which refreshes a network file system's view of it.
        """
        with contextlib.suppress(OSError), Path(self.settings.launch.output).open("rb"):
            pass
        await self._read(None)

    async def _read(self, at: float | None) -> None:
        """Read everything new in the output, or the progress file. `at`: when it was printed, if known."""
        self._read_at = boottime()
        if not self._met:
            return
        async with self._reading:
            if self.settings.progress_file is not None:
                self._read_file(self.settings.progress_file)
            else:
                while piece := self._tail.read():
                    self._feed(piece, boottime() if at is None else at)
                    at = None  # what follows this piece may be newer
                    if len(piece) >= PIECE:
                        await asyncio.sleep(0)
                if self._unread is not None:  # it has printed nothing yet
                    self._begins(self._unread.output_from is not None)
            self._late = False
        said = self.state.hook, self.state.withdrawn
        if core.running(self.state):
            said = announced(self.settings.folder, self.state.shim.trainer_pid if self.state.shim else None)
        self.handle(core.OutputRead(boottime(), self.reader.progress.first_step_at, *said))

    def _feed(self, piece: bytes, at: float) -> None:
        """Feed a piece of the output, splitting it where the current trainer's output begins."""
        begun = None if self._unread is None else self._unread.output_from
        if begun is not None and begun <= self._tail.began + len(piece):
            cut = begun - self._tail.began
            self.reader.feed(piece[: max(0, cut)], at, self._late)
            self._begins(cut >= 0)  # else it began in a skipped part
            piece = piece[max(0, cut) :]
        self.reader.feed(piece, at, self._late)

    def _begins(self, known: bool) -> None:
        if self._unread is not None:
            self.reader.flush(boottime(), self._late)
            self.reader.new_output(self._unread.generation if known else None)
        self._unread = None

    def _read_file(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                content = file.read(LINE_LIMIT + 1)
        except OSError:
            return  # not written yet
        if content != self._file_seen:
            self._file_seen = content
            self.reader.line(content.decode("utf-8", "replace"), boottime(), self._late)

    async def _watch(self) -> None:
        """Verify checkpoints while training runs, less often the longer that takes."""
        watch, pause = self._checkpoints, WATCH_S
        while True:
            await asyncio.sleep(pause)
            shim = self.state.shim
            if watch is None or shim is None:
                continue
            if shim.trainer != "running" and not core.has_unwritten_copy(self.state):
                continue  # a stopping one is inspected at its end
            began = boottime()
            with self._before_beat():
                try:
                    if found := await asyncio.to_thread(watch.find_newer):
                        self.handle(core.CheckpointVerified(boottime(), found))
                except Exception:  # a bad checkpoint must not keep leases from being renewed
                    log.exception("the checkpoints could not be read")
            known = self.state.hook or self.state.checkpoint is not None  # a later one waits for the next heartbeat
            now = boottime()
            pause = max(core.until_beat(self.state, now) if known else WATCH_S, (now - began) / WATCH_SHARE)

    async def _know_source(self, ago_s: float) -> None:
        """Take the current files of the training's code as those that its trainer runs."""
        await asyncio.to_thread(self._source.begin, ago_s)

    async def look_at_source(self) -> list[str]:
        """Return the names of the code files that have changed since the trainer started, if known."""
        source = self._source
        with contextlib.suppress(TimeoutError, OSError, ValueError):  # keep what was known
            async with asyncio.timeout(SOURCE_S):
                found = await asyncio.to_thread(source.edited)
                self.edited = found if source is self._source else self.edited
        return self.edited

    async def _watch_source(self) -> None:
        while True:
            await asyncio.sleep(core.until_beat(self.state, boottime()) if self.state.shim else LOOK_S)
            if core.running(self.state):
                with self._before_beat():
                    await self.look_at_source()

    @contextlib.contextmanager
    def _before_beat(self) -> Iterator[None]:
        """Send the heartbeat that is about to be due once all work for it has finished."""
        self._under_way += 1
        yield
        self._under_way -= 1
        if not self._under_way:
            self.handle(core.TimerFired(boottime()))

    async def _measure(self) -> None:
        while True:
            if self.settings.apart:  # only the shim can measure its container
                with contextlib.suppress(ShimUnreachable):
                    await self.shim.ask({"do": "status"})
            if self.state.shim is not None:
                shim, at = self.state.shim, boottime()
                with self._before_beat():
                    try:
                        self.sample = await self._loop.run_in_executor(self._sampler, self._take, shim, at)
                    except Exception as error:  # a failed measurement must not keep leases from being renewed
                        log.warning("usage could not be measured: %r", error)
            self._measure_now.clear()
            await _heard(self._measure_now, self._next_sample_s())

    def _next_sample_s(self) -> float:
        """Return the seconds until the next sample, at most until the limit expires, which lifts it."""
        now = boottime()
        usual, left = core.until_beat(self.state, now) if self.state.shim else LOOK_S, self._limit.until - now
        return min(usual, left) if left > 0 else usual

    def _take(self, shim: ShimStatus, at: float) -> Sample:
        """Measure usage and GPUs and apply the limit, in the sampling thread."""
        alive = shim.trainer in ("running", "stopping", "frozen")
        usage = self.meter.sample(shim.trainer_pid if alive else None, at, shim if self.settings.apart else None)
        wanted = self._limit.cores if at < self._limit.until else None
        if self.settings.launch.pod:
            quota = shim.cpu_limit if self.settings.apart else own_quota()
            usage.limit, usage.limited_by = limits.in_pod(quota if alive else None, wanted)
            usage.cpu_weight = shim.cpu_weight if alive else None
        else:
            usage.limited_by = self._limiter.hold(shim.trainer_pid if alive else None, wanted, usage.cpu_cores)
            usage.limit = wanted if usage.limited_by else None
        gpu_ids = shim.gpu_ids if alive else []
        ours = gpu_ids and not self._probe.emulated and not self.settings.apart
        pids = processor_seconds(Path("/proc"), shim.shim_pid)[0] if ours else None
        return Sample(at, usage, tuple(self._probe.read(gpu_ids, usage, pids)))

    def _readings(self, shim: ShimStatus) -> list[GpuReading]:
        """Return the last readings of its current GPUs, marked unhealthy if the driver hangs."""
        readings = [reading for reading in self.sample.gpus if reading.gpu_id in shim.gpu_ids]
        if not self._driver.hangs(self.sample.at, boottime()):
            return readings
        return [msgspec.structs.replace(reading, healthy=False, problem=SILENT) for reading in readings]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        running = asyncio.ensure_future(work)
        self._running.add(running)  # the loop holds only a weak reference
        running.add_done_callback(self._finished)

    def _finished(self, work: asyncio.Task[None]) -> None:
        self._running.discard(work)
        if not work.cancelled() and (fault := work.exception()) is not None:
            log.error("an unexpected error: %r", fault, exc_info=fault)


async def _heard(event: asyncio.Event, most_s: float) -> None:
    """Wait for the event, at most `most_s`. Not `wait_for`, which creates a task."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()
