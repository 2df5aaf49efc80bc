"""Who works by SSH is told how a browser reaches the dashboard from where it is."""

from __future__ import annotations

import pytest

from reshape.output.browser import forwarding_hint

LINK = "http://127.0.0.1:8080/login?once=x"


def test_over_ssh_the_command_for_the_other_machine_is_printed() -> None:
    told = forwarding_hint(LINK, {"SSH_CONNECTION": "10.0.0.2 50000 10.0.0.9 22", "USER": "mia"})
    assert told.splitlines()[-1].strip() == "ssh -N -L 8080:127.0.0.1:8080 mia@10.0.0.9"


def test_another_port_of_ssh_is_named() -> None:
    told = forwarding_hint(LINK, {"SSH_CONNECTION": "10.0.0.2 50000 10.0.0.9 2222"})
    assert told.splitlines()[-1].strip() == "ssh -N -p 2222 -L 8080:127.0.0.1:8080 10.0.0.9"


@pytest.mark.parametrize(
    ("link", "environment"),
    [
        (LINK, {}),
        (LINK, {"SSH_CONNECTION": "odd"}),
        ("http://gpu.example:8080/", {"SSH_CONNECTION": "10.0.0.2 50000 10.0.0.9 22"}),
    ],
)
def test_elsewhere_there_is_no_hint(link: str, environment: dict[str, str]) -> None:
    assert forwarding_hint(link, environment) == ""
