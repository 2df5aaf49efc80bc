"""Gives pods seats: a device plugin of the kubelet (v1beta1) whose every seat shows all GPUs of this node, closed.

A pod with a seat sees the device files of all GPUs, and which of them it can open changes while it lives
(`pod_filters.py`). Promises: the kubelet starts a container with a seat only after every GPU was closed to its pod, at
each start, whoever made the pod; where that cannot be done the kubelet is told why, and the container waits. A kubelet
that starts anew forgets all plugins, so this registers again. Called by the node agent, in its own thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sidecar import device_filter
from sidecar.device_filter import Unable
from sidecar.resources.pod_filters import PodFilters
from sidecar.resources.pod_resources import PodResourcesError, device_holders, grpc_module
from sidecar.resources.wire_format import all_fields, encode_field, encode_flag, first_text

SEAT = "volcano-reshape.io/seat"
SOCKET = "volcano-reshape-seat.sock"
KUBELET = "kubelet.sock"
VERSION = "v1beta1"
SEATS = 512  # of a node: two for each of more pods than a kubelet lets run
LOOK_S = 0.5  # between two looks whether the kubelet is a new one, and before another try
TIMEOUT_S = 5.0
DEVICES = "/dev"  # of the machine
BESIDE = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")  # what a GPU needs beside its own file
CDI_ALL = "nvidia.com/gpu=all"

log = logging.getLogger(__name__)


class SeatPlugin:
    """The service v1beta1.DevicePlugin for the resource `SEAT`."""

    def __init__(
        self,
        folder: Path,
        logs: Path,
        pod_resources: Path,
        filters: PodFilters,
        minors: Callable[[], Mapping[str, int]],
        by_cdi: bool,
    ) -> None:
        """`folder`: the kubelet's of device plugins. `logs`: its folder of pods' logs, whose names tell uids.

        `by_cdi`: a seat names the CDI device of all GPUs; else it names their files and sets NVIDIA_VISIBLE_DEVICES.
        """
        self._folder = folder
        self._logs = logs
        self._pod_resources = pod_resources
        self._filters = filters
        self._minors = minors
        self._by_cdi = by_cdi
        self.trouble = "the kubelet does not know of it yet"
        """Why no seats are offered; empty while they are."""

    def run(self, end: threading.Event) -> None:
        """Offer seats until `end` is set."""
        told = ""
        while not end.is_set():
            try:
                self._serve(end)
                told = ""
            except (Unable, PodResourcesError) as fault:
                self.trouble = str(fault)
            except Exception as fault:  # such as a folder of the kubelet that is missing for a moment
                log.debug("seats are not served", exc_info=True)
                self.trouble = f"{type(fault).__name__}: {fault}"
            if self.trouble != told:
                log.warning("no seats are offered: %s", self.trouble)
                told = self.trouble
            end.wait(LOOK_S)

    def _serve(self, end: threading.Event) -> None:
        """Serve and register, until the kubelet has removed the socket or `end` is set."""
        if why := self._filters.unable():
            raise Unable(why)
        grpc = grpc_module()
        socket = self._folder / SOCKET
        socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((self._handler(grpc),))
        server.add_insecure_port(f"unix://{socket}")
        server.start()
        try:
            with grpc.insecure_channel(f"unix://{self._folder / KUBELET}") as channel:
                register = channel.unary_unary(f"/{VERSION}.Registration/Register")
                register(_registration(), timeout=TIMEOUT_S)
            self.trouble = ""
            log.info("seats are offered")
            while socket.exists() and not end.wait(LOOK_S):
                pass
            self.trouble = "the kubelet was restarted"
        except grpc.RpcError as error:
            raise Unable(f"the kubelet does not take the seats: {error.details()}") from None
        finally:
            server.stop(0)

    def _handler(self, grpc: Any) -> Any:
        unary = grpc.unary_unary_rpc_method_handler
        methods = {
            "GetDevicePluginOptions": unary(lambda _, __: encode_flag(1)),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "Allocate": unary(self._allocate),
            "GetPreferredAllocation": unary(lambda _, __: b""),
            "PreStartContainer": unary(self._before_start(grpc)),
        }
        return grpc.method_handlers_generic_handler(f"{VERSION}.DevicePlugin", methods)

    def _list_and_watch(self, _: bytes, context: Any) -> Iterator[bytes]:
        """Tell the kubelet all seats once; the call stays open as long as they are offered."""
        yield b"".join(encode_field(1, encode_field(1, f"seat-{n}") + encode_field(2, "Healthy")) for n in range(SEATS))
        ended = threading.Event()
        if context.add_callback(ended.set):
            ended.wait()

    def _allocate(self, request: bytes, _: Any) -> bytes:
        answer = self.shown()
        return b"".join(encode_field(1, answer) for _ in all_fields(request, 1))

    def shown(self) -> bytes:
        """Return a ContainerAllocateResponse with all GPUs of this node."""
        minors = sorted(self._minors().values())
        if not minors:  # a job on CPU has a seat, too
            return b""
        if self._by_cdi:
            return encode_field(5, encode_field(1, CDI_ALL))
        names = [f"nvidia{minor}" for minor in minors]
        names += [name for name in BESIDE if Path(DEVICES, name).exists()]
        variable = encode_field(1, "NVIDIA_VISIBLE_DEVICES") + encode_field(2, "all")
        return encode_field(1, variable) + b"".join(encode_field(3, _device_spec(name)) for name in names)

    def _before_start(self, grpc: Any) -> Callable[[bytes, Any], bytes]:
        def answer(request: bytes, context: Any) -> bytes:
            try:
                self.close_to(first_text(request, 1))
            except (Unable, PodResourcesError) as fault:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"GPUs cannot be closed to this pod: {fault}")
            except OSError as fault:
                why = device_filter.why_refused(fault)
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"GPUs cannot be closed to this pod: {why}")
            return b""

        return answer

    def close_to(self, seat: str) -> None:
        """Close every GPU to the pod that has this seat. `Unable`, `PodResourcesError` or OSError if it stays open."""
        holder = device_holders(self._pod_resources, SEAT).get(seat)
        if holder is None:
            raise Unable(f"the kubelet does not say which pod has {seat}")
        namespace, _, name = holder.partition("/")
        # The kubelet names the folder NAMESPACE_NAME_UID before it makes the pod; that of an earlier pod may be left.
        uids = [folder.name.rpartition("_")[2] for folder in self._logs.glob(f"{namespace}_{name}_*")]
        if not uids:
            raise Unable(f"the kubelet has made no folder of logs for pod {holder}, which tells its uid")
        self._filters.close(uids)


def _registration() -> bytes:
    options = encode_flag(1)  # pre_start_required
    about = encode_field(1, VERSION) + encode_field(2, SOCKET) + encode_field(3, SEAT)
    return about + encode_field(4, options)


def _device_spec(name: str) -> bytes:
    """Return a DeviceSpec: the path in the container, that on the machine, permissions."""
    return encode_field(1, f"/dev/{name}") + encode_field(2, f"{DEVICES}/{name}") + encode_field(3, "rw")
