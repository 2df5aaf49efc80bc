"""A training of many pods in which a step is only waited for: all ranks meet at pod 0 and make each step together.

`python3 gang.py TOTAL`, beside `steps.py` and what it needs. What each rank was told of the others in a generation it
writes into the folder of the GPU locks. A rank whose peer is gone ends with code 1, as those of the frameworks do.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import steps

from reshape_hooks.locks import GpuLocks
from reshape_hooks.plain import STOPPED, Checkpoints, Pace, StopFlag, environment, say, tell

TOLD = ("TF_CONFIG", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "PET_NNODES", "PET_NPROC_PER_NODE",
        "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")  # fmt: skip
MEET_S = 60.0


class Gang:
    """The ranks, once all of them have met at rank 0."""

    def __init__(self) -> None:
        self.rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.others = self._gather(where[1], size - 1) if self.rank == 0 else [self._join(where)]

    def most(self, number: int) -> int:
        """The highest that any rank says. `OSError` when one is gone."""
        if self.rank != 0:
            self._tell(self.others[0], number)
            return self._hear(self.others[0])
        highest = max([number, *(self._hear(other) for other in self.others)])
        for other in self.others:
            self._tell(other, highest)
        return highest

    def _gather(self, port: int, others: int) -> list[socket.socket]:
        with socket.create_server(("", port)) as server:
            server.settimeout(MEET_S)
            return [self._patient(server.accept()[0]) for _ in range(others)]

    def _join(self, where: tuple[str, int]) -> socket.socket:
        deadline = time.monotonic() + MEET_S
        while True:
            try:
                return self._patient(socket.create_connection(where, timeout=5))
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _patient(self, other: socket.socket) -> socket.socket:
        other.settimeout(MEET_S)
        return other

    def _tell(self, other: socket.socket, number: int) -> None:
        other.sendall(number.to_bytes(8, "big"))

    def _hear(self, other: socket.socket) -> int:
        told = other.recv(8, socket.MSG_WAITALL)
        if len(told) < 8:
            raise ConnectionError("a rank is gone")
        return int.from_bytes(told, "big")


def train(total: int) -> int:
    """The exit code."""
    here = environment()
    flag = StopFlag(here.announce)
    if here.locks:
        told = json.dumps({variable: os.environ.get(variable) for variable in TOLD})
        Path(here.locks, f"{here.job_id}-g{here.generation}-r{os.environ['RANK']}.told").write_text(told)
    gang = Gang()
    kept = Checkpoints(here.checkpoints, here.job_id, here.generation)
    saved = kept.newest(here.prefer) if gang.rank == 0 else None
    step = gang.most(saved.step if saved else 0)
    tell(f"begins after step {step} as rank {gang.rank} of generation {here.generation}")
    locks, pace = GpuLocks(here), Pace(here.step_seconds or steps.STEP_S)
    stops = 0
    while step < total and not stops:
        step += 1
        pace.wait()
        locks.used(step)
        say(step=step, total=total)
        if gang.rank == 0 and (flag.take_save() or step % 10 == 0):
            steps.save(kept, step)
        stops = gang.most(int(flag.stopping))
    locks.close()
    if gang.rank == 0:
        steps.save(kept, step)
    return STOPPED if step < total else 0


if __name__ == "__main__":
    os.umask(0)
    try:
        sys.exit(train(int(sys.argv[1])))
    except OSError as error:
        sys.exit(f"the other ranks cannot be reached: {error}")
