"""Reads from the kubelet which pod holds which GPU: its PodResources API, by gRPC over a Unix socket of the node.

Promises: raises only `PodResourcesError`, with a sentence; only devices of NVIDIA's plugin are told. The kubelet gives
one entry per device, so that a resource's name repeats. grpcio is imported on first use: only the agent of a node with
reserved GPUs needs it. Called by the node agent.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidecar.resources.wire_format import all_fields, first_text

GPU = "nvidia.com/gpu"
LIST = "/v1.PodResourcesLister/List"
MOST_BYTES = 64 * 2**20  # of an answer; gRPC's own limit of 4 MiB is too little for a node with many devices
TIMEOUT_S = 5.0
# Field numbers of kubelet/pkg/apis/podresources/v1/api.proto
PODS = 1
POD_NAME = 1
POD_NAMESPACE = 2
CONTAINERS = 3
DEVICES = 2
RESOURCE = 1
DEVICE_IDS = 2


class PodResourcesError(Exception):
    """The kubelet does not tell, as a sentence."""


def gpu_holders(socket: Path) -> dict[str, str]:
    """Return `namespace/name` of the pod that holds each GPU, by the GPU's id. `PodResourcesError` if unknown."""
    return device_holders(socket, GPU)


def device_holders(socket: Path, resource: str) -> dict[str, str]:
    """Return `namespace/name` of the pod that holds each device of a resource, by its id. `PodResourcesError`."""
    grpc = grpc_module()
    options = [("grpc.max_receive_message_length", MOST_BYTES)]
    try:
        with grpc.insecure_channel(f"unix://{socket}", options) as channel:
            return read_holders(channel.unary_unary(LIST)(b"", timeout=TIMEOUT_S), resource)
    except grpc.RpcError as error:
        said = error.details() if hasattr(error, "details") else error
        raise PodResourcesError(f"the kubelet does not tell which pod holds which device ({socket}): {said}") from None


def grpc_module() -> Any:
    """Return grpcio, imported on first use. `PodResourcesError` if it is not installed."""
    try:
        return importlib.import_module("grpc")
    except ImportError:
        raise PodResourcesError(
            "grpcio is not installed here: pip install '.[k8s]' in a checkout of volcano-reshape"
        ) from None


def read_holders(answer: bytes, resource: str = GPU) -> dict[str, str]:
    """Return the same of an answer as it was received. `PodResourcesError` if it is none."""
    try:
        return dict(_read_holders(answer, resource))
    except (IndexError, ValueError) as error:
        raise PodResourcesError(f"the kubelet's answer about devices cannot be read: {error}") from None


def _read_holders(answer: bytes, resource: str) -> Iterator[tuple[str, str]]:
    for pod in all_fields(answer, PODS):
        name = "/".join(first_text(pod, number) for number in (POD_NAMESPACE, POD_NAME))
        for container in all_fields(pod, CONTAINERS):
            for devices in all_fields(container, DEVICES):
                if first_text(devices, RESOURCE) == resource:
                    yield from ((each.decode(), name) for each in all_fields(devices, DEVICE_IDS))
