"""Makes what coordinator/model/schema declares: the page of job documents, two schemas of them, and names for mypy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml

from coordinator.model import fields
from coordinator.model.schema import job_fields, job_schema, row_fields
from coordinator.model.schema.field_types import types_of_fields
from coordinator.stores.bootstrap import shipped
from reference_pages.markdown import row

BEGIN, END = "    # begin: written by make reference\n", "    # end: written by make reference\n"
LONG = 140  # characters of a line of the description that stay on one line

EXAMPLES: dict[str, dict[str, Any]] = {
    "The least: one GPU, until the command ends": {
        "job_id": "hello", "state": "submitted", "num_gpus": 1, "command": ["python", "train.py"],
    },
    "Elastic, with a known length, a deadline and a target": {
        "job_id": "resnet-1", "state": "submitted", "command": ["python", "train.py"], "job_type": "resnet50",
        "optional_num_gpus": [1, 2, 4], "epochs": 90, "dataset_size": 1281167, "batch_size": 256, "elastic": True,
        "sla": "6h", "target": {"value": 0.76, "name": "val_accuracy"},
    },
    "Trained on CPU, after another job": {
        "job_id": "features", "state": "submitted", "command": "python features.py", "optional_num_gpus": [0],
        "resources": {"cores": 2, "memory": 4000000000}, "depends_on": ["hello"],
    },
    "A gang of pods on a cluster": {
        "job_id": "gang", "state": "submitted", "command": ["python3", "/code/train.py"], "image": "python:3.11-slim",
        "namespace": "team-a", "queue": "reshape", "optional_num_gpus": [2, 4, 8], "gpus_per_pod": 2,
        "checkpoint_claim": "checkpoints",
    },
}  # fmt: skip

# Tables II and III of the SideCar paper: one moment of a cluster with four GPUs and five jobs.
GPU_ROWS = [
    {"_id": gpu, "gpu_id": gpu, "state": state, "job_id": job, "worker_id": worker}
    for gpu, state, job, worker in [
        (0, "in use", 0, 0), (1, "in use", 0, 1), (2, "in use", 1, 0), (3, "reserved", 2, None),
    ]
]  # fmt: skip
JOB_ROWS = [
    {
        "_id": job, "job_id": job, "state": state, "num_gpus": len(gpu_ids or []), "gpu_ids": gpu_ids, "job_type": job,
        "optional_num_gpus": optional,
    }
    for job, state, gpu_ids, optional in [
        (0, "running", [0, 1], [1, 2, 4]), (1, "adjusting", [2], [1, 2, 4]), (2, "initialized", [3], [1, 2, 4]),
        (3, "submitted", None, [1, 2, 4, 8]), (4, "completed", None, [1, 2, 4, 8]),
    ]
]  # fmt: skip

HEAD = """\
# Job documents
A job is a document: what it runs, and on how many GPUs it can. A file of it, in JSON or YAML, is submitted as it is:
```sh
reshape up --detach --gpus 4xV100
cat > job.json <<'END'
{"job_id": "digits-1", "command": ["python", "numpy_digits.py", "--epochs", "9999"], "code": "examples",
 "optional_num_gpus": [1, 2, 4], "sla": "2h"}
END
reshape submit -f job.json
reshape cancel digits-1
reshape down
```
The same goes as the body of `POST /v1/jobs`, from Python (`client.submit({...})`), or into the table `jobs` of
[MongoDB](../how-to/mongodb.md). These are the fields that you may write; the same as JSON Schema:
[job.schema.json](job.schema.json). Written by `make reference` from `coordinator/model/schema/job_fields.py`: change it
there.

`state` and `command` are needed (over HTTP `command` alone), and `optional_num_gpus` or `num_gpus`. A field that is
null is as one that is left out. Fields of your own tools begin with `x_` or `_`; any other field that is not listed is
a problem. So is a text of more than 32 768 characters, or with control characters or template marks (`{{`, `{%`, `{#`).
A document with a problem gets a list of sentences in `problems` and is otherwise left as it is; correct it, and it is
read again.
"""
PAPER = """\
## The tables of the SideCar paper
A table of the paper is a table of the store, with the paper's names of fields (section 1.2 of
[algorithms.md](../algorithms.md)); `_id` is the store's key.
`tests/contract/test_tables_of_the_paper.py` writes Tables II and III with a user's own client and reads them back.

### Table II: `gpus`
GPU 3 is reserved: it is promised to job 2, and job 1 still holds it, which the field `held_by` of a real row says.
"""
PAPER_JOBS = """\
### Table III: `jobs`
What job 1 is about to do is in the field `reshape` of a real row. Ours are the states initializing, restarting,
failed and cancelled.
"""
PAPER_SPEEDS = """\
### Table IV: `speed_profiles`
Seconds per iteration. The paper prints these as an illustration (`G20` in [algorithms.md](../algorithms.md)); a row is
replaced by what is measured.
"""
PAPER_CURVES = """\
### Table V: `accuracy_profiles`
Top-5 accuracy after so many iterations, by which the length of a job with a target is predicted.
"""


def page() -> str:
    """Return the text of docs/reference/job.md."""
    return "\n".join([HEAD, *_groups(), *_examples(), *_paper()])


def _groups() -> Iterator[str]:
    for title, group in job_fields.GROUPED.items():
        rows = ["| Field | Type | Where it is left out | What it says | Example |", "|---|---|---|---|---|"]
        rows += [_row(field) for field in group]
        yield f"## {title}\n" + "\n".join(rows) + "\n"


def _row(field: job_fields.Field) -> str:
    cells = (
        f"`{field.name}`", job_schema.type_words(job_schema.schema_of(field.kind)), field.default, field.meaning,
        f"`{json.dumps(field.example)}`",
    )  # fmt: skip
    return row(*cells)


def _examples() -> Iterator[str]:
    yield "## Examples"
    for title, doc in EXAMPLES.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in doc.items())
        yield f"{title}:\n```json\n{{\n{lines}\n}}\n```\n"


def _paper() -> Iterator[str]:
    speeds, curves = map(_of_the_paper, ("speed_profiles", "accuracy_profiles"))
    yield PAPER + _documents(GPU_ROWS)
    yield PAPER_JOBS + _documents(JOB_ROWS)
    yield PAPER_SPEEDS + _documents(speeds)
    yield PAPER_CURVES + _documents(curves).rstrip("\n") + "\n"


def _of_the_paper(table: str) -> list[dict[str, Any]]:
    """Return the rows of `table` for the paper's job type; those of other job types were measured here."""
    return [row for row in shipped(table) if row["job_type"] == "0"]


def _documents(rows: Sequence[dict[str, Any]]) -> str:
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return f"```json\n[\n{lines}\n]\n```\n"


def openapi(text: str) -> str:
    """Return the API description `text` with the schema `Submission` replaced by the generated one."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    lines = ["    Submission:\n", *yaml_lines(job_schema.submission(), "      ")]
    return before + BEGIN + "".join(lines) + END + after


def yaml_lines(schema: dict[str, Any], indent: str) -> Iterator[str]:
    """Yield the schema as YAML lines; a value that fits stays on one line, as in the rest of the file."""
    for key, value in schema.items():
        line = f"{indent}{key}: {_flow(value)}\n"
        if key == "properties":
            yield f"{indent}{key}:\n"
            yield from yaml_lines(value, indent + "  ")
        elif len(line) <= LONG or not isinstance(value, dict):
            yield line
        else:
            yield f"{indent}{key}:\n"
            yield from (f"{indent}  {name}: {_flow(part)}\n" for name, part in value.items())


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("...\n").strip()


def schema() -> str:
    """Return the text of docs/reference/job.schema.json."""
    return json.dumps(job_schema.document(fields.KNOWN), indent=2) + "\n"


NAMES_HEAD = '''\
"""Names the fields of `jobs`, `gpus` and `nodes` for mypy. Written by `make reference` from `coordinator.model.schema`.

Fields are declared there; mypy reads names only where they are written as text.
"""

from __future__ import annotations

from typing import Literal
'''


def field_names() -> str:
    """Return the text of coordinator/model/field_names.py."""
    names: dict[str, Iterable[str]] = {
        "PublicJobField": job_fields.FIELDS,
        "CoordinatorJobField": types_of_fields(row_fields.JobStatus),
        "SystemJobField": types_of_fields(row_fields.JobAdministration),
        "GpuField": types_of_fields(row_fields.GpuFields),
        "NodeField": types_of_fields(row_fields.NodeFields),
    }
    return NAMES_HEAD + "\n" + "\n".join(_literal(name, fields) for name, fields in names.items())


def _literal(name: str, fields: Iterable[str]) -> str:
    lines = "".join(f'    "{field}",\n' for field in fields)
    return f"{name} = Literal[\n{lines}]\n"
