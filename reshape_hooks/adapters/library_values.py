"""Tells whether an object of a library that has no `state_dict` has changed: an estimator, a table, a graph.

    classifier = SGDClassifier()  # of scikit-learn
    for step in state.steps(100):
        classifier.partial_fit(...)  # would begin anew after a stop

Called by `not_given`. Objects that cannot be pickled are compared by their attributes; what only shows or writes what a
training does, such as a progress bar, counts as having no state. Standard library, Python 3.8 and newer.
"""

from __future__ import annotations

import contextvars
import enum
import functools
import io
import pathlib
import pickle
import random
import sys
import threading
import zlib
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from reshape_hooks.adapters import pytrees, raw_memory
from reshape_hooks.adapters.present_values import TensorNow, digest_of_array
from reshape_hooks.adapters.script_frames import is_own
from reshape_hooks.adapters.variables import (
    BUFFERS,
    ITEMS,
    MAPPINGS,
    OF_PYTHON,
    PLAIN,
    is_instrument,
    is_named_tuple,
    is_of_framework,
    is_of_jax,
    is_plain,
)
from reshape_hooks.library_code import is_of_python

MOST_PICKLED = 256 << 20  # bytes besides those of arrays, which are not copied
EXEMPT = (
    # made anew by each import
    "importlib",
    "_frozen_importlib",
    "_frozen_importlib_external",
    # kept elsewhere
    "reshape_hooks",
    "numpy",
    "jax",
    "jaxlib",
    # set anew by each call
    "evaluate",
    "tokenizers",
    # of these `outer_state` tells
    "mlflow",
    "tensorboard",
    "tensorboardX",
    "wandb",
)
DEFINITIONS = (FunctionType, BuiltinFunctionType, MethodType)
IN_MEMORY = (io.StringIO, io.BytesIO)
QUEUES = ("queue", "_queue", "multiprocessing.queues")
SHARED_NUMBERS = "multiprocessing.sharedctypes"
HASHES = ("_hashlib", "_blake2", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3", "hmac")
OF_THREADS = (threading.Semaphore, threading.BoundedSemaphore, threading.Event, threading.local)
OF_PROCESSES = "multiprocessing.synchronize"
# Their objects fill attributes at their first use, or read data: only what can be pickled is compared.
FILL_LATER = (
    "PIL",
    "flax",
    "grain",
    "h5py",
    "keras",
    "lmdb",
    "optax",
    "orbax",
    "pyarrow",
    "tensorflow",
    "tf_keras",
    "zarr",
)


def is_library_value(value: Any) -> bool:
    """Return whether it is an object of a library, or of Python, whose state nothing else keeps."""
    kind = type(value)
    if kind in (*PLAIN, *ITEMS, *MAPPINGS, *BUFFERS, random.Random) or issubclass(kind, DEFINITIONS):
        return False
    if _reader_of(kind) is not None or _is_odd_array(value):
        return True
    if is_instrument(value) or issubclass(kind, (enum.Enum, pathlib.PurePath)):
        return False
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _is_exempt(kind.__module__) or name in OF_PYTHON or is_own(kind) or is_of_framework(value):
        return False
    kept = is_plain(value) or is_named_tuple(value) or is_of_jax(value) or pytrees.is_of_nnx(value)
    return not (kept or hasattr(kind, "state_dict"))


def _is_odd_array(value: Any) -> bool:
    """Return whether it is a masked array, a matrix or the like; a mapped file is no value."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray) or isinstance(value, numpy.memmap):
        return False
    return type(value) is not numpy.ndarray and not is_own(type(value))


@functools.lru_cache(1024)
def _is_exempt(module: str) -> bool:
    """Return whether a module is built into Python, whose objects are values, streams or locks, or in `EXEMPT`."""
    return getattr(sys.modules.get(module), "__file__", None) is None or module.partition(".")[0] in EXEMPT


def state_of(value: Any) -> dict[str, Any]:
    """Return a digest that differs once the object has changed; empty if it has no state, or none can be told."""
    reads = _reader_of(type(value))
    if reads is not None:
        return reads(value)
    return _digested_or(_state_by_attributes, value)


def _reader_of(kind: type) -> Callable[[Any], dict[str, Any]] | None:
    """Return the function that reads the state of a type of Python which pickling does not show; None for others."""
    if kind.__module__ in QUEUES:
        return _state_of_queue
    if kind.__module__ == SHARED_NUMBERS:
        return _state_of_shared_number
    if raw_memory.is_connection(kind):
        return raw_memory.state_of_connection
    if raw_memory.holds_memory(kind):
        return raw_memory.state_of_memory
    if kind.__module__ in HASHES:
        return _state_of_hash
    if kind.__module__ == OF_PROCESSES or kind in OF_THREADS:
        return _state_of_signal
    if kind in IN_MEMORY:
        return _state_of_buffer
    if kind is contextvars.ContextVar:
        return _state_of_context
    return _state_of_generator if issubclass(kind, random.Random) and kind is not random.Random else None


def _state_of_shared_number(value: Any) -> dict[str, Any]:
    return {"numbers": bytes(getattr(value, "get_obj", lambda: value)())}


def _state_of_hash(value: Any) -> dict[str, Any]:
    """Return what was hashed so far. A hash of any length (SHAKE) wants one."""
    length = () if value.digest_size else (32,)
    return {"digest": value.digest(*length)}


def _state_of_signal(value: Any) -> dict[str, Any]:
    """Return the count of a semaphore, whether an event is set, or what this thread has put into a local."""
    if isinstance(value, threading.local):
        return _digested_or(_no_state, dict(value.__dict__))
    for name in ("is_set", "get_value"):
        if hasattr(value, name):
            return {name: getattr(value, name)()}
    return {"count": value._value} if hasattr(value, "_value") else {}


def _state_of_buffer(value: Any) -> dict[str, Any]:
    return {} if value.closed else {"held": hash(value.getvalue())}


def _state_of_context(value: Any) -> dict[str, Any]:
    held = value.get(None)
    return {} if held is None else _digested_or(_no_state, held)


def _state_of_generator(value: Any) -> dict[str, Any]:
    """Return the state of a generator of random numbers; none if it takes them from the machine, or does not tell."""
    try:
        state = value.getstate()
    except Exception:  # a script's own class raises anything
        return {}
    return {"state": _digested_or(_no_state, state), "attributes": _digested_or(_no_state, dict(vars(value)))}


def _digested_or(otherwise: Callable[[Any], dict[str, Any]], value: Any) -> dict[str, Any]:
    """Return a digest of a value, or what `otherwise` returns for one that cannot be pickled."""
    try:
        return _digested(_Pickler, value)
    except _TooLarge:
        return {"too large": _NeverEqual()}
    except Exception:  # libraries raise anything
        return otherwise(value)


def _no_state(value: Any) -> dict[str, Any]:
    return {}


def _state_of_queue(value: Any) -> dict[str, Any]:
    """Return which items wait in a queue, as a new start hands them over to nobody; empty if none do."""
    try:
        if value.empty():
            return {}
        return {"waiting": tuple(map(id, value.queue))}
    except (OSError, ValueError):  # it is closed
        return {}
    except (AttributeError, RuntimeError):  # its items are not shown, or change at the moment
        return {"waiting": _NeverEqual()}


def _state_by_attributes(value: Any) -> dict[str, Any]:
    """Return a digest of what the attributes of an object show that cannot be pickled; empty if that cannot either."""
    module = type(value).__module__
    if is_of_python(_file_of(module)) or module.partition(".")[0] in FILL_LATER:
        return {}
    try:
        return _digested(_AttributesPickler, value)
    except _TooLarge:
        return {"too large": _NeverEqual()}
    except Exception:  # libraries raise anything
        return {}


def advice_about(value: Any) -> str:
    """Return how a script keeps such an object, for people."""
    if type(value).__module__ in QUEUES:
        return "empty it in each step, or let the loop itself make what it holds"
    if raw_memory.is_connection(type(value)) or raw_memory.holds_memory(type(value)):
        return raw_memory.advice_about(type(value))
    try:
        _digested(_Pickler, value)
    except _TooLarge:
        return "it is too large to be compared at each save; hold it in a data set, or create it in each epoch"
    except Exception:  # libraries raise anything
        return "as it cannot be saved, create it in each epoch"
    return "keep it in a dictionary that Elastic is given, and use it from there only"


def _file_of(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__file__", None) or "")


def _digested(pickler: Any, value: Any) -> dict[str, Any]:
    buffers: list[pickle.PickleBuffer] = []
    file = _Checksum()
    pickler(file, buffers.append).dump(value)
    return {"pickled": (file.sum, *(_digest_of(one) for one in buffers))}


def _digest_of(buffer: pickle.PickleBuffer) -> bytes:
    numpy: Any = sys.modules.get("numpy")
    raw = buffer.raw()
    return digest_of_array(numpy.frombuffer(raw, "u1")) if numpy is not None else zlib.crc32(raw).to_bytes(4, "big")


class _NeverEqual:
    """Stands for a state that cannot be compared."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False


class _TooLarge(Exception):
    """Raised for an object with more bytes than are compared."""


class _Pickler(pickle.Pickler):
    """Pickles without copying arrays; raises for what holds a part of a training, which may be large or on a GPU."""

    PROTOCOL = 5

    def __init__(self, file: Any, take_buffer: Any) -> None:
        super().__init__(file, protocol=self.PROTOCOL, buffer_callback=take_buffer)
        torch: Any = sys.modules.get("torch")
        self._trained = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer) if torch is not None else ()

    def persistent_id(self, thing: Any) -> None:
        if isinstance(thing, self._trained):
            raise pickle.PicklingError("a part of a training")


class _AttributesPickler(_Pickler):
    """Pickles objects that cannot be pickled by their attributes: locks, handles and files in them are left out.

    A tensor stands there by some of its numbers, as all may have to come from a GPU, and by how often it was written
    to.
    """

    def persistent_id(self, thing: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(thing, torch.Tensor) or thing.requires_grad:
            return super().persistent_id(thing)
        now = TensorNow(thing)
        return now.numbers, now.version

    def reducer_override(self, thing: Any) -> Any:
        if thing is _stands_for:
            return NotImplemented
        if isinstance(thing, (type, *DEFINITIONS)):
            return _stands_for, (getattr(thing, "__qualname__", ""),)
        try:
            thing.__reduce_ex__(self.PROTOCOL)
        except Exception:  # libraries raise anything
            return _stands_for, (type(thing).__qualname__,), dict(getattr(thing, "__dict__", {}))
        return NotImplemented


def _stands_for(name: str) -> str:
    """Stand, in a pickle that is never loaded, for what cannot be pickled."""
    return name


class _Checksum(io.RawIOBase):
    """Sums up what is written, and keeps nothing of it. Raises _TooLarge for too much."""

    def __init__(self) -> None:
        self.sum = self._bytes = 0

    def write(self, data: Any) -> int:
        written = memoryview(data).nbytes
        self._bytes += written
        if self._bytes > MOST_PICKLED:
            raise _TooLarge
        self.sum = zlib.crc32(data, self.sum)
        return written
