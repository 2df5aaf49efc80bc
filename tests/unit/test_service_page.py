"""The systemd unit of docs/how-to/service.md starts a command that exists, and does not end trainings with it."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from reshape.cli.main import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "service.md"


class UnitParser(configparser.ConfigParser):
    """Keeps names as they are written, as systemd does."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def units() -> tuple[str, str]:
    """Return the unit, and the lines that change where all users of a machine are served."""
    whole, changed = re.findall(
        r'```ini title="reshape.service"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    return whole, changed


def parsed(text: str) -> UnitParser:
    parser = UnitParser(interpolation=None)
    parser.read_string(text)
    return parser


@pytest.fixture(scope="module")
def unit() -> UnitParser:
    return parsed(units()[0])


def test_the_lines_for_all_users_of_a_machine_start_a_command_with_these_options() -> None:
    changed = parsed(f"[Service]\n{units()[1]}")["Service"]
    program, *words = shlex.split(changed["ExecStart"])
    assert program.endswith("/bin/reshape") and "--shared" in words
    assert CliRunner().invoke(cli, [*words, "--help"]).exit_code == 0
    assert changed["RuntimeDirectory"] == "reshape"


def test_what_the_unit_starts_is_a_command_with_these_options(unit: configparser.ConfigParser) -> None:
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/bin/reshape")
    state = words[words.index("--state") + 1]
    assert state == f"/var/lib/{unit['Service']['StateDirectory']}"
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(cli, [*words, "--no-such-option"])
    assert refused.exit_code == 2, "or this test would take any option for one that exists"


def test_trainings_outlive_the_service_and_a_stop_may_take_as_long_as_down_waits(
    unit: configparser.ConfigParser,
) -> None:
    assert unit["Service"]["KillMode"] == "process"
    help_of_down = CliRunner().invoke(cli, ["down", "--help"]).output
    (seconds,) = re.findall(r"at most (\d+) s", help_of_down)
    assert int(unit["Service"]["TimeoutStopSec"]) > int(seconds)
