"""Says what no text of a job document may hold: it reaches shells, templates and logs. Pure.

Called by intake, for each text of a document and of a pod's fields. `reshape.client.command` says it once more, as it
may be installed alone, and sends none of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST_TEXT = 32_768  # characters
TEMPLATE_MARKS = ("{{", "{%", "{#")
MARKS_SHOWN = ", ".join(TEMPLATE_MARKS)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # all but tab and line feed; surrogates are no text


def has_template_mark(text: str) -> bool:
    return any(mark in text for mark in TEMPLATE_MARKS)


def problems_of_text(field: str, text: str) -> Iterator[str]:
    """Yield a sentence for each thing that the text of this field may not hold."""
    if len(text) > LONGEST_TEXT:
        yield f"{field} is longer than {LONGEST_TEXT} characters"
        return  # do not scan megabytes
    if CONTROL.search(text):
        yield f"{field} holds a control character"
    if has_template_mark(text):
        yield f"{field} holds a template mark ({MARKS_SHOWN}), which is not allowed"
