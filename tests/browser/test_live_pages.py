"""What happens is seen in an open page without reloading it, and what people do there is done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from coordinator.model import states as s
from reshape.services.coordinator import STANDBY
from tests.browser.chrome import WIDE, Chrome
from tests.browser.conftest import SCREENSHOTS
from tests.browser.scene import go, log_in
from tests.e2e.up import ROOT, digits, running
from tests.fakes.coordinator_api import serve
from tests.fakes.world import World
from tests.patience import patient

HERE = "window.here = true"  # gone after a reload
IN_USE = (
    "[...document.querySelectorAll('.gpus .in-use')].reduce((sum, at) => sum + +at.className.match(/ n([0-9]+)/)[1], 0)"
)


def test_a_reshape_arrives_in_an_open_page_and_leaves_the_reader_where_he_is(tab: Chrome) -> None:
    tab.look(False, WIDE)
    world = World.training([1, 2, 4])
    with serve(world.api) as live:
        log_in(tab, live)
        go(tab, live, "/")
        tab.do(HERE)
        tab.do("document.querySelector('#fleet-table').open = true")
        tab.do("document.querySelector('.gpus a').focus()")
        assert tab.do(IN_USE) == 4
        world.api.operator.request("one", 2, None)
        world.run(lambda w: len(w.job("one").gpu_ids) == 2 and w.states()["one"] == s.RUNNING)
        tab.until(f"{IN_USE} === 2 && window.here")
        assert tab.do("document.querySelector('#fleet-table').open"), "the table was closed"
        assert tab.do("document.activeElement.textContent") == "one", "the focus was lost"
        tab.open("about:blank")


def test_a_page_says_when_it_is_not_live_and_goes_on_when_it_can(tab: Chrome) -> None:
    world = World.training([1, 2])
    with serve(world.api) as live:
        log_in(tab, live)
        go(tab, live, "/")
        tab.do(HERE)
        live.app.settings["services"] = STANDBY  # as while another coordinator takes over
        tab.until("document.getElementById('live').className === 'bad'")
        live.app.settings["services"] = world.api
        tab.until("document.getElementById('live').textContent === 'live' && window.here")
        world.api.operator.cancel("one")
        world.run(lambda w: w.states()["one"] == s.CANCELLED)
        tab.until(f"{IN_USE} === 0 && window.here")
        tab.open("about:blank")
    assert {"503" in complaint for complaint in tab.complaints} <= {True}
    tab.complaints.clear()


def test_a_job_is_reshaped_and_cancelled_by_keyboard(tab: Chrome) -> None:
    tab.look(False, WIDE)
    world = World.training([1, 2, 4])
    with serve(world.api) as live:
        log_in(tab, live)
        go(tab, live, "/jobs/one")
        tab.do("document.querySelector('select[name=gpus]').value = '2'")
        tab.do("document.querySelector('select[name=gpus]').focus()")
        tab.press("Tab")
        assert tab.do("document.activeElement.textContent") == "Reshape"
        tab.press("Enter")
        tab.until("document.querySelector('select[name=gpus]')?.value === '2' && document.readyState === 'complete'")
        tab.do(HERE)
        world.run(lambda w: len(w.job("one").gpu_ids) == 2 and w.states()["one"] == s.RUNNING)
        tab.until("window.here && document.querySelector('#facts').textContent.includes('2 (emulated)')")
        tab.do("document.querySelector('#cancel summary').focus()")
        tab.press("Enter")
        tab.press("Tab")
        tab.press("Enter")
        tab.until("!window.here && document.readyState === 'complete'")
        world.run(lambda w: w.states()["one"] == s.CANCELLED)
        tab.until("document.querySelector('#facts').textContent.includes('cancelled')")
        tab.open("about:blank")


def test_a_training_of_reshape_up_is_seen_and_reshaped_in_the_browser(tab: Chrome, tmp_path: Path) -> None:
    """Nothing is imitated here: the command line's link, real trainings, a real reshape, its real events."""
    tab.look(True, WIDE)
    with running(tmp_path / "state", "4xV100") as up:
        up.client.submit(digits("real", 100_000, [1, 2, 4]))
        up.until("real", "running")
        command = [sys.executable, "-m", "reshape", "--state", str(up.state), "dashboard"]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patient(60), check=True).stdout
        tab.open(told.split()[0])
        tab.until(f"location.pathname === '/' && document.readyState === 'complete' && {IN_USE} === 4")
        address = told.partition("/login")[0]
        tab.open(address + "/jobs/real")
        tab.until("document.querySelector('#log').textContent.includes('step')")
        tab.until("(log => log.scrollTop + log.clientHeight >= log.scrollHeight - 2)(document.querySelector('.log'))")
        tab.do("document.querySelector('select[name=gpus]').value = '2'")
        tab.do("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Reshape').click()")
        tab.until("document.querySelector('select[name=gpus]')?.value === '2' && document.readyState === 'complete'")
        tab.do(HERE)
        tab.until("window.here && document.querySelector('#events').textContent.includes('4 to 2 GPUs')")
        tab.screenshot(SCREENSHOTS / "real-job-dark.png")
        tab.open(address + "/timeline")
        tab.until("document.querySelector('#timeline svg') !== null")
        tab.screenshot(SCREENSHOTS / "real-timeline-dark.png")
        tab.open("about:blank")
