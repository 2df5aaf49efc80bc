"""A reshape is a trace with a span for each stage, sent to an OpenTelemetry collector if one is named."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from coordinator.events import traces
from coordinator.stores.elector import TERM
from tests.fakes.http_thread import serving_in_thread
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

STAGES = {"signal": 0.5, "exit": 0.25, "first step": 1.25}


def test_a_reshape_is_one_trace_whose_stages_follow_one_another_until_the_first_step() -> None:
    exporter = InMemorySpanExporter()
    sent = traces.ReshapeTraces(SimpleSpanProcessor(exporter))
    sent.reshaped("reshape", {"job": "one", "to_gpus": 2, "newcomer": None}, STAGES, 1_700_000_000.0)
    *stages, whole = exporter.get_finished_spans()
    assert [span.name for span in stages] == list(STAGES)
    assert {span.context.trace_id for span in stages} == {whole.context.trace_id}
    assert {span.parent.span_id for span in stages if span.parent} == {whole.context.span_id}
    assert dict(whole.attributes or {}) == {"reshape.job": "one", "reshape.to_gpus": 2}
    times = [(span.start_time or 0, span.end_time or 0) for span in stages]
    assert [end - begin for begin, end in times] == [500_000_000, 250_000_000, 1_250_000_000]
    assert times[0][0] == whole.start_time and times[-1][1] == whole.end_time == 1_700_000_000 * traces.NS
    assert all(end == begin for (_, end), (begin, _) in pairwise(times))


def test_the_coordinator_sends_one_for_each_reshape_and_none_for_a_start() -> None:
    exporter = InMemorySpanExporter()
    world = World.training([2, 4], Behaviour(iterations=4_000))
    world.c.recorder.traces = traces.ReshapeTraces(SimpleSpanProcessor(exporter))
    world.api.operator.request("one", 2, None)
    world.run(lambda w: w.job("one").doc.get("reshapes") == 1)
    *stages, whole = exporter.get_finished_spans()
    about = dict(whole.attributes or {})
    assert (about["reshape.job"], about["reshape.direction"], about["reshape.to_gpus"]) == ("one", "down", 2)
    assert about["reshape.decision_id"] == world.api.history.decisions("one", 1)[0]["decision_id"]
    assert {"signal", "exit", "first step"} <= {span.name for span in stages}


def test_a_collector_that_hangs_keeps_neither_the_last_events_nor_the_term() -> None:
    world, found = World.training([2, 4], Behaviour(iterations=4_000)), list[tuple[object, object]]()

    class Hangs(SimpleSpanProcessor):
        def shutdown(self) -> None:
            found.append(((world.users.get("terms", TERM) or {}).get("released"), world.store.last_event()))

    world.c.recorder.traces = traces.ReshapeTraces(Hangs(InMemorySpanExporter()))
    world.c.event_log.append({"type": "last"})
    world.c.stop()
    assert found == [(True, world.c.event_log.last())]


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """The address of an OTLP receiver on loopback, and what it was sent."""
    received: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    with serving_in_thread(server):
        yield f"http://127.0.0.1:{server.server_port}", received


def test_a_collector_gets_what_was_sent_before_the_end(
    collector: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    sent = traces.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    assert sent is not None
    sent.reshaped("move", {"job": "one"}, STAGES, 1_700_000_000.0)
    sent.close()
    (resource,) = ExportTraceServiceRequest.FromString(b"".join(received)).resource_spans
    assert "volcano-reshape" in [one.value.string_value for one in resource.resource.attributes]
    assert {span.name for scope in resource.scope_spans for span in scope.spans} == {"move", *STAGES}


def test_without_a_collector_nothing_is_sent_and_without_the_library_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert traces.from_environment({}) is None
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with caplog.at_level(logging.WARNING):
        assert traces.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}) is None
    assert "pip install '.[otel]'" in caplog.text
