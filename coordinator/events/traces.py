"""Sends a trace of each reshape to an OpenTelemetry collector, with a span for each of its stages.

Only this module knows OpenTelemetry, which is in the extra `otel` and is imported if a collector is named. Sending
happens in a thread of the library and may fail: nothing waits for it. Called by `event_recorder.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

log = logging.getLogger(__name__)

NOT_INSTALLED = "%s is set, but no traces are sent: pip install '.[otel]' in a checkout of volcano-reshape"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")  # as OpenTelemetry names them
SERVICE = "volcano-reshape"
NS = 1_000_000_000


class ReshapeTraces:
    """Thread-safe."""

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        own = Resource.create()  # with what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say
        nameless = str(own.attributes.get("service.name")).startswith("unknown_service")
        self._provider = TracerProvider(resource=own.merge(Resource({"service.name": SERVICE})) if nameless else own)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(SERVICE)

    def reshaped(self, name: str, about: Mapping[str, Any], stages_s: Mapping[str, float], until: float) -> None:
        """Send the trace of a reshape or move whose first step came at `until`, in seconds since 1970.

        `stages_s`: seconds by stage, in their order, each of which begins as the one before ends.
        """
        from opentelemetry import trace

        ends = round(until * NS)
        at = ends - round(sum(stages_s.values()) * NS)
        known = {f"reshape.{key}": value for key, value in about.items() if value is not None}
        whole = self._tracer.start_span(name, start_time=at, attributes=known)
        inside = trace.set_span_in_context(whole)
        for stage, seconds in stages_s.items():
            span = self._tracer.start_span(stage, inside, start_time=at)
            at += round(seconds * NS)
            span.end(at)
        whole.end(ends)

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()


def from_environment(environment: Mapping[str, str]) -> ReshapeTraces | None:
    """Return traces that go to the collector that `ENDPOINTS` name; None if none is named, or without the library."""
    if not any(environment.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(NOT_INSTALLED, ENDPOINTS[1])
        return None
    return ReshapeTraces(BatchSpanProcessor(OTLPSpanExporter()))
