"""A fake of NVIDIA's device plugin: `fake_gpu_plugin.py FOLDER GPU-ID…`, one process per node.

It tells the kubelet that the node has these devices as `nvidia.com/gpu`, over the real gRPC API (v1beta1), and gives
containers the variable that NVIDIA's plugin gives them. FOLDER is the kubelet's folder of device plugins. A kubelet
that starts anew deletes all sockets there; then it registers again. Stands alone: of ours it imports nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

RESOURCE = "nvidia.com/gpu"
SOCKET = "fake-gpus.sock"
LOOK_S = 0.2


def field(number: int, content: bytes | str) -> bytes:
    """Encode one field of a protobuf message that is a text or a message."""
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields of a message that has only texts and messages."""
    place = 0
    while place < len(message):
        key, place = read_varint(message, place)
        size, place = read_varint(message, place)
        yield key >> 3, message[place : place + size]
        place += size


def read_varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, place


def log(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Plugin:
    """The service v1beta1.DevicePlugin."""

    def __init__(self, gpu_ids: list[str]) -> None:
        self._gpu_ids = gpu_ids

    def options(self, _: bytes, __: grpc.ServicerContext) -> bytes:
        return b""

    def list_and_watch(self, _: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        devices = (field(1, gpu_id) + field(2, "Healthy") for gpu_id in self._gpu_ids)
        yield b"".join(field(1, device) for device in devices)
        while context.is_active():
            time.sleep(LOOK_S)

    def allocate(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        answers = []
        for _number, container in fields(request):
            ids = ",".join(gpu_id.decode() for _, gpu_id in fields(container))
            answers.append(field(1, field(1, field(1, "NVIDIA_VISIBLE_DEVICES") + field(2, ids))))
        return b"".join(answers)

    def nothing(self, _: bytes, __: grpc.ServicerContext) -> bytes:
        return b""

    def handler(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            "v1beta1.DevicePlugin",
            {
                "GetDevicePluginOptions": unary(self.options),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list_and_watch),
                "Allocate": unary(self.allocate),
                "GetPreferredAllocation": unary(self.nothing),
                "PreStartContainer": unary(self.nothing),
            },
        )


def serve(folder: Path, plugin: Plugin) -> None:
    """Serve and register until the kubelet has deleted the socket."""
    socket = folder / SOCKET
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((plugin.handler(),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix://{folder}/kubelet.sock") as channel:
            register = channel.unary_unary("/v1beta1.Registration/Register")
            register(field(1, "v1beta1") + field(2, SOCKET) + field(3, RESOURCE), timeout=5)
        log("registered")
        while socket.exists():
            time.sleep(LOOK_S)
    except grpc.RpcError as error:
        log(f"not registered: {error}")
        time.sleep(LOOK_S)
    finally:
        server.stop(0)


if __name__ == "__main__":
    while True:
        serve(Path(sys.argv[1]), Plugin(sys.argv[2:]))
