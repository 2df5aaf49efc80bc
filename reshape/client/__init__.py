"""The Python client of the coordinator's HTTP API; the command line is its first user.

Imports the standard library only and nothing of the coordinator, so that it loads fast and can be installed alone, as
the distribution `reshape-client` (`reshape/pyproject.toml`). With await: `reshape/client/async_client.py`.
"""

from reshape.client.client import LATELY_S, Client
from reshape.client.command import NotRunnable
from reshape.client.connection import CoordinatorRefused, CoordinatorUnreachable, View
from reshape.client.job import JobList, SubmittedJob

__all__ = [
    "LATELY_S",
    "Client",
    "CoordinatorRefused",
    "CoordinatorUnreachable",
    "JobList",
    "NotRunnable",
    "SubmittedJob",
    "View",
]
