"""The page of the HTTP API, from its OpenAPI description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reference_pages.markdown import table

Doc = Mapping[str, Any]
VERBS = ("get", "post", "delete")
SHOWN = ("Job", "Gpu", "Node", "Decision", "Health", "Error")
HEAD = """\
# HTTP API
Of the coordinator, on its one port. Written by `make reference` from
[coordinator/http/openapi.yaml](../../coordinator/http/openapi.yaml), which a running coordinator shows at `/v1/openapi.yaml`:
change it there. What a request may hold and what each answer looks like is tested against that file.

On a shared machine the socket `/run/reshape/reshape.sock` knows who calls ([how-to/shared-machine.md](../how-to/shared-machine.md)). Elsewhere
show the token as `Authorization: Bearer TOKEN`. `reshape up` keeps it in `api.token` of its state folder, a cluster in the
Secret `reshape-keys`; a cluster also takes the tokens of its users and service accounts, each with the rights that Kubernetes
gives it ([how-to/sharing-a-cluster.md](../how-to/sharing-a-cluster.md)). An answer of 400 and above is `{"error": {"sentence": ..., "problems": [...], "id": ...}}`. Times are
seconds since 1970 unless a name ends in `_s`, which is a duration in seconds.

```sh
reshape up --detach --gpus 4xV100
URL=$(python3 -c 'import json; print(json.load(open("'$HOME'/.reshape/up.json"))["url"])')
TOKEN=$(cat ~/.reshape/api.token)
curl -sS -H "Authorization: Bearer $TOKEN" -d '{"command": ["sleep", "1"], "num_gpus": 1}' \\
  -H "Content-Type: application/json" "$URL/v1/jobs"
curl -sS -H "Authorization: Bearer $TOKEN" "$URL/v1/gpus"
reshape down
```
"""


def page(api: Doc) -> str:
    """Return the text of docs/reference/http-api.md for an OpenAPI description."""
    calls = [(path, verb, item[verb]) for path, item in api["paths"].items() for verb in VERBS if verb in item]
    summary = ((f"`{verb.upper()} {path}`", call["summary"], _proof(call)) for path, verb, call in calls)
    return "\n".join(
        [
            HEAD,
            "## Calls\n" + table(("Call", "What it does", "Proof"), summary),
            *(_call(api, path, verb, call) for path, verb, call in calls),
            "## What answers hold\n",
            *(_schema(api, name) for name in SHOWN),
        ]
    )


def _proof(call: Doc) -> str:
    """Return the word for what a caller must show."""
    if "security" not in call:
        return "token"
    return "signature" if call["security"] else "none"


def _call(api: Doc, path: str, verb: str, call: Doc) -> str:
    parts = [
        f"### `{verb.upper()} {path}`\n{call['summary']}. {_sentence(call.get('description', ''))}".rstrip() + "\n"
    ]
    given = [_resolved(api, one) for one in (*api["paths"][path].get("parameters", ()), *call.get("parameters", ()))]
    if given:
        rows = ((f"`{one['name']}`", one["in"], _type(api, one["schema"]), one.get("description", "")) for one in given)
        parts.append(table(("Parameter", "In", "Type", "Meaning"), rows))
    if "requestBody" in call:
        parts.append(_body(api, _resolved(api, call["requestBody"])))
    answers = ((code, _resolved(api, answer).get("description", "")) for code, answer in call["responses"].items())
    parts.append("Answers: " + "; ".join(f"{code} {text[:1].lower() + text[1:]}" for code, text in answers) + ".\n")
    return "\n".join(parts)


def _body(api: Doc, body: Doc) -> str:
    schema = body["content"]["application/json"]["schema"]
    if schema.get("$ref", "").endswith("/Submission"):
        return "Body: a job document, [job.md](job.md).\n"
    if not schema.get("properties"):
        return "Body: a JSON object.\n"
    return "Body:\n\n" + _fields(api, schema)


def _fields(api: Doc, schema: Doc) -> str:
    needed = schema.get("required", ())
    rows = (
        (f"`{name}`{' (needed)' if name in needed else ''}", _type(api, _resolved(api, one)), _resolved(api, one).get("description", ""))
        for name, one in schema["properties"].items()
    )  # fmt: skip
    return table(("Field", "Type", "Meaning"), rows)


def _schema(api: Doc, name: str) -> str:
    schema = api["components"]["schemas"][name]
    needed = ", ".join(f"`{field}`" for field in schema.get("required", ()))
    shown = {**schema, "required": ()}
    return f"### {name}\nAlways there: {needed}.\n\n{_fields(api, shown)}"


def _type(api: Doc, schema: Doc) -> str:
    """Return a type in words, with what bounds it."""
    schema = _resolved(api, schema)
    if one_of := schema.get("oneOf"):
        return " or ".join(_type(api, one) for one in one_of)
    word = str(schema.get("type", "any"))
    if word == "array":
        word = f"list of {_type(api, schema['items'])}"
    words = [word, *([f"one of {', '.join(schema['enum'])}"] if "enum" in schema else [])]
    words += [f"default {json.dumps(schema['default'])}"] if "default" in schema else []
    words += ["or null"] if schema.get("nullable") else []
    return ", ".join(words)


def _resolved(api: Doc, part: Doc) -> Doc:
    """Return what a `$ref` points to."""
    if "$ref" not in part:
        return part
    found: Any = api
    for word in part["$ref"].removeprefix("#/").split("/"):
        found = found[word]
    return found


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if not text or text.endswith((".", ")", "`")) else f"{text}."
