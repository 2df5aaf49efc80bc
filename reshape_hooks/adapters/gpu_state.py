"""Leaves a state's tensors on their GPU while the training's process is replaced, and takes them back.

What PyTorch keeps on a GPU is copied into memory of a process beside the shim (`sidecar/gpu_memory.py`), which takes
milliseconds where saving and loading take seconds; the rest of the state is pickled as always. Storages are transferred
whole, so that tensors that share one still do. Promises: a state that cannot be held is saved as without this, at no
cost but the attempt; one that is held is sealed only after all of it has arrived. The next process finds it on the GPU,
or in the file that the holder writes meanwhile. Called by `elastic`; imports PyTorch where the script does.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import mmap
import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reshape_hooks import plain
from reshape_hooks.adapters import held_memory
from reshape_hooks.adapters.held_memory import CannotBeHeld

WRITTEN_S = 600.0  # for the file of tensors that are not available on the GPU


def on_gpu(storage: Any) -> bool:
    """Return whether a PyTorch storage is in an NVIDIA GPU's memory."""
    return bool(storage.device.type == "cuda")


class StorageCollector(pickle.Pickler):
    """Pickles a state without its storages; collects each in `on_gpu` or `on_cpu`, once however many share it."""

    def __init__(self, file: Any, torch: Any) -> None:
        super().__init__(file, protocol=2)
        self.torch = torch
        self.on_gpu: list[Any] = []
        self.on_cpu: list[Any] = []
        self._known: dict[tuple[str, int, int], tuple[bool, int]] = {}

    def persistent_id(self, found: Any) -> Any:
        """Return where the storage is: on the GPU or not, its index there, and the dtype in which PyTorch views it."""
        typed = isinstance(found, self.torch.storage.TypedStorage)
        if not typed and not isinstance(found, self.torch.UntypedStorage):
            return None
        storage = found._untyped_storage if typed else found
        key = str(storage.device), storage.data_ptr(), storage.nbytes()
        if key not in self._known:
            there = on_gpu(storage)
            if not there and storage.device.type != "cpu":
                raise CannotBeHeld(f"a part of it is on a device of the kind {storage.device.type}")
            group = self.on_gpu if there else self.on_cpu
            self._known[key] = there, len(group)
            group.append(storage)
        return (*self._known[key], str(found.dtype).rpartition(".")[2] if typed else "")


class StorageProvider(pickle.Unpickler):
    """Loads what `StorageCollector` pickled, with these storages in place."""

    def __init__(self, file: Any, torch: Any, on_gpu: list[Any], on_cpu: list[Any]) -> None:
        super().__init__(file)
        self.torch, self.storages = torch, {True: on_gpu, False: on_cpu}

    def persistent_load(self, found: Any) -> Any:
        there, number, dtype = found
        storage = self.storages[there][number]
        if not dtype:
            return storage
        typed = self.torch.storage.TypedStorage
        return typed(wrap_storage=storage, dtype=getattr(self.torch, dtype), _internal=True)


def hold(state: Any, file: str) -> dict[str, Any] | None:
    """Hand a state's tensors to the holder, if there is one; return the files of a checkpoint in memory.

    `file`: the name of the one with everything that is not on a GPU. None: save the state as usual.
    """
    torch, folder = sys.modules.get("torch"), held_memory.offered()
    if torch is None or folder is None:
        return None
    try:
        pickled = io.BytesIO()
        collector = StorageCollector(pickled, torch)
        collector.dump(state)
        if not collector.on_gpu:
            return None
        others = [ctypes.string_at(storage.data_ptr(), storage.nbytes()) for storage in collector.on_cpu]
        kept = _handed_over(torch, collector.on_gpu, folder)
    except (CannotBeHeld, OSError, AttributeError, TypeError, RuntimeError, pickle.PicklingError) as fault:
        plain.warn(
            f"reshape: the state of this training does not stay on its GPU, because {fault}; it is saved instead"
        )
        return None
    return {file: pickle.dumps((pickled.getvalue(), others), 4), plain.TENSORS: json.dumps(kept).encode()}


def _handed_over(torch: Any, storages: list[Any], folder: Path) -> dict[str, Any]:
    devices = {storage.device.index or 0 for storage in storages}
    if len(devices) > 1:
        raise CannotBeHeld("it is on several GPUs")
    device = devices.pop()
    reserved = torch.cuda.memory_reserved(device) if torch.cuda.is_available() else 0
    pieces = [held_memory.Piece(storage.data_ptr(), storage.nbytes()) for storage in storages]
    with settled(torch, device):
        return held_memory.hand_over(folder, pieces, device, reserved)


@contextlib.contextmanager
def settled(torch: Any, device: int) -> Iterator[None]:
    """Wait until the GPU is idle; its context is current in this thread meanwhile."""
    if not torch.cuda.is_available():
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        yield


def read(folder: Path, file: str, to_cpu: bool = False) -> Any:
    """Return the state of a checkpoint whose tensors were held on a GPU: from there, else from its file.

    `to_cpu`: because other processes get it, too. Raises CheckpointError.
    """
    torch = sys.modules["torch"]
    kept = json.loads((folder / plain.TENSORS).read_text())
    began = plain.boottime()
    storages, place = _from_gpu(torch, kept), "GPU memory"
    if storages is None:
        storages, place = _from_file(torch, folder, kept), "its file"
    if to_cpu:
        storages = [storage.cpu() for storage in storages]
    pickled, others = pickle.loads((folder / file).read_bytes())
    on_cpu = [_storage(torch, bytearray(one)) for one in others]
    state = StorageProvider(io.BytesIO(pickled), torch, storages, on_cpu).load()
    plain.tell(f"reshape: {kept['bytes'] / 1e9:.2f} GB of state taken from {place} in {plain.boottime() - began:.3f} s")
    return state


def _from_gpu(torch: Any, kept: Mapping[str, Any]) -> list[Any] | None:
    """Return copies of the storages on the GPU; None if they are not available there."""
    device = kept["device"]

    def make(size: int) -> tuple[Any, int]:
        storage = new_storage(torch, size, device)
        return storage, storage.data_ptr()

    try:
        with settled(torch, device):
            return held_memory.take_back(kept, make)
    except (CannotBeHeld, OSError, AttributeError, RuntimeError):  # as when the GPU is full
        return None


def new_storage(torch: Any, size: int, device: int) -> Any:
    """Return a new storage of `size` bytes on the GPU."""
    return torch.UntypedStorage(size, device=torch.device("cuda", device))


def _from_file(torch: Any, folder: Path, kept: Mapping[str, Any]) -> list[Any]:
    """Return the storages from the file that the holder writes, once it is there."""
    path, until = folder / plain.BULK, plain.boottime() + WRITTEN_S
    while not path.exists():
        fault = plain.held_fault(folder)
        if plain.boottime() > until or (fault and not path.exists()):
            raise plain.CheckpointError(f"checkpoint {folder.name} cannot be loaded: {fault or 'it is not written'}")
        time.sleep(0.05)
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return [_storage(torch, data, begin, size) for begin, size in zip(kept["begins"], kept["sizes"])]


def _storage(torch: Any, data: Any, begin: int = 0, size: int = -1) -> Any:
    """Return a storage backed by these bytes, which it keeps alive; `size` -1: to their end."""
    if not len(data) or not size:
        return torch.UntypedStorage(0)
    return torch.frombuffer(data, dtype=torch.uint8, count=size, offset=begin).untyped_storage()
