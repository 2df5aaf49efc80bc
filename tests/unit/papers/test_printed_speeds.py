"""Promise: the rule for speeds that the SideCar paper does not print goes through all that it does print."""

from __future__ import annotations

import pytest

from reshape_papers.workloads import printed_speeds
from reshape_papers.workloads.sidecar_workloads import JOB_SETS, batch_of

BATCHES = sorted({batch_of(named) for named in JOB_SETS["one"]})


def test_the_law_goes_through_the_printed_points():
    ups = {n: printed_speeds.by_law(n, printed_speeds.PRINTED_BATCH) for n in (1, 2, 4)}
    assert ups == pytest.approx({1: 1.0, 2: 1.7, 4: 2.4})


@pytest.mark.parametrize("batch", BATCHES)
def test_only_taken_as_those_of_the_largest_batch_do_the_points_agree_with_table_iv(batch, monkeypatch):
    monkeypatch.setattr(printed_speeds, "PRINTED_BATCH", batch)
    printed = [seconds[1] / seconds[2] for seconds in printed_speeds.TABLE_IV.values()]
    type_0 = printed_speeds.by_law(2, batch_of(JOB_SETS["one"][0]))
    assert (min(printed) <= type_0 <= max(printed)) == (batch == max(BATCHES) == 256)


def test_on_8_gpus_small_batches_are_slower_than_on_4_as_the_paper_says_that_it_can_be():
    ups = {batch: printed_speeds.speed_up(8, batch) for batch in BATCHES}
    assert ups[64] < ups[128] < 2.4 < ups[256]
    assert min(ups.values()) > 1.7, "faster than on 2"
