"""A data set with an address is fetched in the pod, before the training starts; one that is not there is told."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster.bed_network import HOST_IP
from tests.cluster.installed import Installed, answered
from tests.fakes.dataset_server import serving

COUNTS_BYTES = "import os; n = os.path.getsize(os.environ['RESHAPE_DATASET']); print(f'step={n} total={n}', flush=True)"


def test_a_data_set_with_an_address_is_there_when_the_training_starts(
    installed: Installed, jobs: Callable[..., str]
) -> None:
    with serving(b"x" * 5000, HOST_IP) as data:
        job = jobs("fetches", 5000, [1], command=["python3", "-u", "-c", COUNTS_BYTES], dataset=data.url)
        assert installed.until(job, "completed")["iters_done"] == 5000
        assert data.asked == ["/data.npz"]
        data.status = 404
        job = jobs("misses", 5000, [1], command=["python3", "-u", "-c", COUNTS_BYTES], dataset=data.url)
        answered("its message says why", lambda: "answered 404 (Not Found)" in str(installed.job(job)["message"]), 60)
