"""The page of the sidecar's endpoints, from its routes and the messages that they read and return."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
from tornado.httpserver import HTTPServer

from reference_pages.markdown import field_comments, table
from sidecar import protocol
from sidecar.endpoints import server
from sidecar.service import Sidecar

HEAD = """\
# The sidecar's HTTP endpoints
Each launch of a job has a sidecar of its own, beside its training. It answers here, on `127.0.0.1` at a free port on one
machine (the address is in `sidecar.url` of the launch's folder), on port 8477 in a pod. Written by `make reference` from
`sidecar/endpoints/server.py` and `sidecar/protocol.py`: change them there.

You rarely need these: `reshape reshape ID --gpus 2` and `POST /v1/jobs/ID/reshape` of [the coordinator](http-api.md) do the same
for any job, wherever it runs. Here a script beside the training, or in its pod, can ask without knowing the coordinator.
"""
CALLERS = """\
## Who may call
| Caller | Shows | May call |
| --- | --- | --- |
| anybody who reaches the port | nothing | what only reads |
| an operator | `Authorization: Bearer TOKEN`; on one machine only from that machine | `/v1/reshape`, `/v1/signal` |
| the coordinator | a signature with the launch's key over method, path and body (`X-Reshape-Job`, `X-Reshape-Launch`, `X-Reshape-Signature`) | the rest |

The token is `operator.token` in the launch's folder or, of a pod, in the launch's Secret, which the pod's annotation
`volcano-reshape.io/launch` names. Nothing that an operator asks here changes anything at once: the sidecar passes it on to
the coordinator, which decides, and alone gives GPUs away ([reliability.md](../reliability.md#6-who-may-act)). Where work would be
lost, since the job has not shown that it saves and resumes, `/v1/reshape` and `stop` are refused (409) without `"force": true`.

## An example
On one machine, in the folder of a launch, which is one of those in `jobs/` of `reshape up`'s state folder:

<!-- not run: tests/api/test_sidecar_http.py makes these calls -->
```sh
url=$(cat sidecar.url)
curl -s "$url/v1/status"
curl -s -H "Authorization: Bearer $(cat operator.token)" -d '{"signal": "checkpoint"}' "$url/v1/signal"
curl -s -H "Authorization: Bearer $(cat operator.token)" -d '{"gpus": 2}' "$url/v1/reshape"
```
In a pod the address is `http://$POD_IP:8477`. The last two print the id of a decision, as `{"decision_id": "..."}`;
`reshape events` shows what becomes of it.
"""
ERRORS = """\
## Errors
`{"error": "a sentence"}` with one of these statuses:

"""
STATUSES = {
    "400": "the body cannot be used; the sentence names the field",
    "401": "no right signature or token",
    "404": "there is nothing at this path",
    "405": "the path does not know this method; `Allow` says which one",
    "409": "refused as things are: an older generation, a training that must not be stopped unasked",
    "503": "shim or coordinator cannot be reached, or the lease has run out; `Retry-After` says when to try again",
}
ANYBODY = "anybody"
OPERATOR = "an operator"
COORDINATOR = "the coordinator"


class Described(NamedTuple):
    """One endpoint: what it is for, and whom it obeys."""

    method: str
    caller: str
    does: str
    body: str = "-"
    answer: str = "-"


ENDPOINTS: Mapping[str, Described] = {
    "/v1/reshape": Described("POST", OPERATOR, "asks for a GPU count", "`ReshapeBody`", "202, `decision_id`"),
    "/v1/signal": Described(
        "POST",
        OPERATOR,
        "asks the training to save and go on, or to save and end",
        "`SignalBody`",
        "202, `decision_id`",
    ),
    "/v1/status": Described("GET", ANYBODY, "how the training is, and how far", answer="`Heartbeat`"),
    "/livez": Described("GET", ANYBODY, "whether the sidecar runs", answer='`{"status": "ok"}`'),
    "/healthz": Described("GET", ANYBODY, "whether its shim answers, too", answer='`{"status": "ok"}`'),
    "/metrics": Described("GET", ANYBODY, "[metrics](metrics.md#of-a-sidecar) for Prometheus", answer="text"),
    "/v1/start": Described("POST", COORDINATOR, "starts the training on these GPUs", "`StartCall`", "`ShimStatus`"),
    "/v1/stop": Described("POST", COORDINATOR, "has it save and end", "`StopCall`", "`ShimStatus`"),
    "/v1/checkpoint": Described("POST", COORDINATOR, "has it save and go on", "`CheckpointCall`", "`ShimStatus`"),
    "/v1/output": Described("POST", COORDINATOR, "a part of what it printed", "`OutputCall`", "`Output`"),
}
MESSAGES = (
    server.ReshapeBody,
    server.SignalBody,
    protocol.Heartbeat,
    protocol.ShimStatus,
    protocol.Progress,
    protocol.Usage,
    protocol.GpuReading,
    protocol.Checkpoint,
    protocol.Lost,
    protocol.GpuHolder,
    protocol.StartCall,
    protocol.StopCall,
    protocol.CheckpointCall,
    protocol.OutputCall,
    protocol.Output,
)


def page() -> str:
    """Return the text of docs/reference/sidecar-api.md. `KeyError` if a route is not described here."""
    routes = routes_of(server.make_server(cast(Sidecar, SimpleNamespace())))
    rows = [_endpoint_row(path, ENDPOINTS[path]) for path in sorted(routes, key=list(ENDPOINTS).index)]
    return "\n".join(
        [
            HEAD,
            table(("Endpoint", "Caller", "What it does", "Body", "Answer"), rows),
            CALLERS,
            ERRORS + table(("Status", "When"), STATUSES.items()),
            "## Messages\nJSON objects. A field with a default is left out where it has that value. Seconds throughout; what ends in\n"
            "`_at` is a reading of the machine's clock since its boot, so that only differences mean something.\n",
            *(_message(kind) for kind in MESSAGES),
        ]
    )


def routes_of(made: HTTPServer) -> list[str]:
    """Return the paths that a server answers."""
    application: Any = made.request_callback
    return [rule.matcher._path for rule in application.wildcard_router.rules]


def _endpoint_row(path: str, described: Described) -> tuple[str, ...]:
    return f"`{described.method} {path}`", described.caller, described.does, described.body, described.answer


def _message(kind: type[msgspec.Struct]) -> str:
    comments = field_comments(kind)
    rows = [
        (f"`{field.name}`", f"`{_type_name(field.type)}`", _default(field), comments.get(field.name, "-"))
        for field in msgspec.structs.fields(kind)
    ]
    about = (inspect.getdoc(kind) or "").partition("\n")[0]
    return f"### {kind.__name__}\n{about}\n\n" + table(("Field", "Type", "Default", "Meaning"), rows)


def _type_name(hint: Any) -> str:
    """Return a type as Python writes it, without modules and without bounds."""
    if hasattr(hint, "__metadata__"):
        hint = hint.__origin__
    if isinstance(hint, type) and not hasattr(hint, "__args__"):
        return hint.__name__
    for module in ("typing.", "sidecar.protocol."):
        hint = str(hint).replace(module, "")
    return str(hint).replace("NoneType", "None")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return "`{}`" if isinstance(made, msgspec.Struct) else f"`{msgspec.json.encode(made).decode()}`"
