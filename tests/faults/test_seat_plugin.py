"""Seats over real gRPC, as a kubelet asks for them: what they show, and that nothing starts before it is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from sidecar.device_filter import Unable
from sidecar.resources import seat_plugin
from sidecar.resources.pod_filters import PodFilters
from sidecar.resources.seat_plugin import SEAT, SOCKET, SeatPlugin
from sidecar.resources.wire_format import all_fields, encode_field, first_text
from tests.patience import eventually

UID = "11111111-2222-3333-4444-555555555555"


class Kubelet:
    """Takes registrations, and says who holds which seat."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: list[bytes] = []
        self.holders = {"seat-7": ("training", "count-trainer-0")}
        self.start()

    def start(self) -> None:
        """Begin anew, as a kubelet does: the sockets of all plugins are removed."""
        for socket in self.folder.glob("*.sock"):
            socket.unlink()
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._serve("v1beta1.Registration", "Register", self._register)
        self._serve("v1.PodResourcesLister", "List", self._list)
        self._server.add_insecure_port(f"unix://{self.folder}/kubelet.sock")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()

    def _serve(self, service: str, method: str, answer: Any) -> None:
        handler = {method: grpc.unary_unary_rpc_method_handler(answer)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handler),))

    def _register(self, request: bytes, _: Any) -> bytes:
        self.registered.append(request)
        return b""

    def _list(self, _: bytes, __: Any) -> bytes:
        pods = b""
        for seat, (namespace, name) in self.holders.items():
            devices = encode_field(2, encode_field(1, SEAT) + encode_field(2, seat))
            container = encode_field(3, encode_field(1, "main") + devices)
            pods += encode_field(1, encode_field(1, name) + encode_field(2, namespace) + container)
        return pods

    def call(self, method: str, request: bytes = b"") -> bytes:
        with grpc.insecure_channel(f"unix://{self.folder}/{SOCKET}") as channel:
            answer: bytes = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=10)
        return answer

    def devices(self) -> list[str]:
        with grpc.insecure_channel(f"unix://{self.folder}/{SOCKET}") as channel:
            listed = next(channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"", timeout=10))
        return [first_text(device, 1) for device in all_fields(listed, 1)]

    def starts(self, seat: str = "seat-7") -> None:
        self.call("PreStartContainer", encode_field(1, seat))


class Filters(PodFilters):
    """Notes what is closed; the kernel's part is in test_pod_filters.py."""

    def __init__(self) -> None:
        self.closed: list[list[str]] = []
        self.fault = ""
        self.why = ""

    def unable(self) -> str:
        return self.why

    def close(self, uids: Any) -> None:
        if self.fault:
            raise Unable(self.fault)
        self.closed.append(sorted(uids))


class Node:
    def __init__(self, folder: Path, by_cdi: bool = False) -> None:
        self.logs = folder / "logs"
        self.logs.mkdir()
        (self.logs / f"training_count-trainer-0_{UID}").mkdir()
        self.sockets = folder / "s"
        self.sockets.mkdir()
        self.kubelet = Kubelet(self.sockets)
        self.filters = Filters()
        self.minors = {"GPU-b": 1, "GPU-a": 0}
        place = self.sockets, self.logs, self.sockets / "kubelet.sock"
        self.plugin = SeatPlugin(*place, self.filters, lambda: self.minors, by_cdi)
        self.end = threading.Event()
        self._offers = threading.Thread(target=self.plugin.run, args=(self.end,))

    def offers(self) -> None:
        self._offers.start()
        eventually(lambda: self.plugin.trouble == "", "seats are offered")

    def stop(self) -> None:
        self.end.set()
        if self._offers.is_alive():
            self._offers.join()
        self.kubelet.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.stop()


def test_a_container_starts_only_once_its_pod_is_closed(node: Node) -> None:
    node.offers()
    (request,) = node.kubelet.registered
    assert [first_text(request, number) for number in (1, 2, 3)] == ["v1beta1", SOCKET, SEAT]
    required = b"\x08\x01"  # pre_start_required: true
    assert next(all_fields(request, 4)) == required == node.kubelet.call("GetDevicePluginOptions")
    assert node.kubelet.devices()[:2] == ["seat-0", "seat-1"]
    node.kubelet.starts()
    assert node.filters.closed == [[UID]]


def test_the_kubelet_is_told_why_a_pod_cannot_be_closed(node: Node) -> None:
    node.offers()
    node.filters.fault = "the pod has no control group of version 2"
    with pytest.raises(grpc.RpcError, match="GPUs cannot be closed to this pod: the pod has no control group"):
        node.kubelet.starts()
    node.filters.fault = ""
    with pytest.raises(grpc.RpcError, match="the kubelet does not say which pod has seat-8"):
        node.kubelet.starts("seat-8")
    node.kubelet.holders["seat-8"] = ("training", "without-logs")
    with pytest.raises(grpc.RpcError, match="no folder of logs for pod training/without-logs"):
        node.kubelet.starts("seat-8")
    assert node.filters.closed == []


def test_the_folders_of_other_pods_are_not_taken_for_its_own(node: Node) -> None:
    for other in ("training_count-trainer-01_a", "other_count-trainer-0_b", "training_count-trainer_c"):
        (node.logs / other).mkdir()
    earlier = "99999999-2222-3333-4444-555555555555"
    (node.logs / f"training_count-trainer-0_{earlier}").mkdir()
    node.offers()
    node.kubelet.starts()
    assert node.filters.closed == [[UID, earlier]]


def test_a_new_kubelet_is_offered_the_seats_again(node: Node) -> None:
    node.offers()
    node.kubelet.stop()
    node.kubelet.start()
    eventually(lambda: len(node.kubelet.registered) == 2 and node.plugin.trouble == "", "it registers again")
    node.kubelet.starts()
    assert node.filters.closed == [[UID]]


def test_where_no_filter_can_be_set_there_are_no_seats(node: Node) -> None:
    node.filters.why = "no control groups v2 are mounted here"
    node._offers.start()
    eventually(lambda: node.plugin.trouble == node.filters.why, "it says why")
    assert node.kubelet.registered == []
    node.filters.why = ""
    eventually(lambda: node.plugin.trouble == "", "it offers them once it can")


def test_a_seat_shows_all_gpus_by_files_or_by_cdi(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat_plugin, "DEVICES", str(tmp_path))
    (tmp_path / "nvidiactl").touch()
    node.offers()
    (answer,) = all_fields(node.kubelet.call("Allocate", encode_field(1, encode_field(1, "seat-7"))), 1)
    variables = [(first_text(each, 1), first_text(each, 2)) for each in all_fields(answer, 1)]
    assert variables == [("NVIDIA_VISIBLE_DEVICES", "all")]
    files = [[first_text(each, number) for number in (1, 2, 3)] for each in all_fields(answer, 3)]
    names = ("nvidia0", "nvidia1", "nvidiactl")
    assert files == [[f"/dev/{name}", f"{tmp_path}/{name}", "rw"] for name in names]
    cdi = SeatPlugin(node.sockets, node.logs, node.sockets, node.filters, lambda: node.minors, True).shown()
    assert [first_text(each, 1) for each in all_fields(cdi, 5)] == ["nvidia.com/gpu=all"]
    assert list(all_fields(cdi, 1)) == list(all_fields(cdi, 3)) == []
    for by_cdi in (True, False):
        bare = SeatPlugin(node.sockets, node.logs, node.sockets, node.filters, dict, by_cdi).shown()
        assert bare == b"", "a node without GPUs has nothing to show"
