"""A bad setting stops the start and names itself."""

from __future__ import annotations

from dataclasses import fields

import pytest

from adaptive_scheduler.settings import Settings
from coordinator.config import Config, from_environment


@pytest.mark.parametrize("name", [f.name for f in fields(Config) if isinstance(f.default, float)])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_no_time_may_be_zero_or_less(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a number greater than 0"):
        Config(**{name: value})  # type: ignore[arg-type]


def test_a_lease_must_leave_time_to_save() -> None:
    with pytest.raises(ValueError, match=r"lease_s \(20.0\) must be longer than grace_s \(20.0\)"):
        Config(lease_s=20.0)


def test_the_way_of_reshaping_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match="reshape_by must be `sidecar` or `relaunch`, not 'magic'"):
        Config(reshape_by="magic")


def test_a_silent_launch_is_waited_for_longer_than_it_can_live() -> None:
    config = Config()
    assert config.wait_out_s > config.lease_s + config.kill_s


def test_variables_are_read_by_their_names_and_what_is_given_wins() -> None:
    variables = {"RESHAPE_LEASE_S": "60", "RESHAPE_RETRIES": "5", "RESHAPE_EARLY_INITIALIZATION": "0", "OTHER": "x"}
    config = from_environment(Config, variables, retries=7)
    assert (config.lease_s, config.retries, config.early_initialization) == (60.0, 7, False)


def test_settings_of_each_system_and_the_list_of_systems_are_variables_too() -> None:
    variables = {
        "RESHAPE_SYSTEMS": "elastic, specon", "RESHAPE_SPECON_INTERVAL_S": "2", "RESHAPE_FLOWCON_BETA": "3",
        "RESHAPE_DEADLINES_MAX_PREEMPTS": "1", "RESHAPE_SPECON_ACCEPT_MOVE": "always", "RESHAPE_MOVES": "0",
    }  # fmt: skip
    settings = from_environment(Settings, variables)
    assert (settings.systems, settings.moves) == (("elastic", "specon"), False)
    assert (settings.specon.interval_s, settings.specon.accept_move, settings.specon.alpha) == (2.0, "always", 0.01)
    assert (settings.flowcon.beta, settings.deadlines.max_preempts) == (3.0, 1)


def test_a_bad_setting_of_a_system_is_named_by_its_variable() -> None:
    with pytest.raises(ValueError, match=r"^RESHAPE_SPECON_ACCEPT_MOVE must be one of 'makespan', 'always', not 'x'"):
        from_environment(Settings, {"RESHAPE_SPECON_ACCEPT_MOVE": "x"})
    with pytest.raises(ValueError, match=r"^RESHAPE_SYSTEMS must be some of .*, not 'magic'"):
        from_environment(Settings, {"RESHAPE_SYSTEMS": "magic"})
    with pytest.raises(ValueError, match=r"^RESHAPE_DEADLINES_PERCENTILE must be a share from 0 to 1, .*, not 90\.0"):
        from_environment(Settings, {"RESHAPE_DEADLINES_PERCENTILE": "90"})
    with pytest.raises(ValueError, match=r"^RESHAPE_DEADLINES_MAX_PREEMPTS must be a whole number, not '1\.5'"):
        from_environment(Settings, {"RESHAPE_DEADLINES_MAX_PREEMPTS": "1.5"})


@pytest.mark.parametrize(
    ("name", "text"), [("RESHAPE_LEASE_S", "long"), ("RESHAPE_RETRIES", "1.5"), ("RESHAPE_EARLY_INITIALIZATION", "no")]
)
def test_a_variable_that_cannot_be_read_is_named(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be .*, not '{text}'"):
        from_environment(Config, {name: text})


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "http://", "ftp://host", "http://user:word@host", "http://host?x=1"]
)
def test_an_address_of_prometheus_that_is_none_stops_the_start(url: str) -> None:
    with pytest.raises(ValueError, match=r"RESHAPE_PROMETHEUS must be an address such as http://HOST:9090"):
        from_environment(Config, {"RESHAPE_PROMETHEUS": url})


@pytest.mark.parametrize("url", ["http://host:9090", "https://host/prometheus/", "http://[fd00::1]:9090"])
def test_an_address_of_prometheus_may_hold_a_port_and_a_path(url: str) -> None:
    assert from_environment(Config, {"RESHAPE_PROMETHEUS": url}).prometheus == url
