"""The hooks come into a training's interpreter unseen, and never end its script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import reshape_hooks

PACKAGE = Path(reshape_hooks.__file__).parent
SHOW_PATH = "import sys; print(*sys.path, sep='\\n')"


def run(code: str, folder: Path, *path: Path, adapters: str = "") -> subprocess.CompletedProcess[str]:
    """Run the code as the shim starts it. `adapters`: statements that change ADAPTERS before the hooks wait."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, (PACKAGE / "startup", *path)))}
    script = folder / "script.py"
    script.write_text(code)
    if adapters:
        code = f"from reshape_hooks import on_import; {adapters}; on_import.install()"
        (folder / "sitecustomize.py").write_text(code)
        env["PYTHONPATH"] += f"{os.pathsep}{folder}"
    return subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=False)


def test_the_scripts_path_and_modules_are_those_that_it_has_without_the_hooks(tmp_path: Path) -> None:
    with_hooks = run(SHOW_PATH, tmp_path, tmp_path / "own")
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "own")}
    argv = [sys.executable, str(tmp_path / "script.py")]
    without = subprocess.run(argv, env=plain, capture_output=True, text=True, check=True)
    assert (with_hooks.stdout, with_hooks.stderr) == (without.stdout, without.stderr)


def test_the_hooks_can_be_imported_though_they_are_not_on_the_path(tmp_path: Path) -> None:
    ended = run("import reshape_hooks.plain as p; print(p.__file__)", tmp_path)
    assert ended.stdout.strip() == str(PACKAGE / "plain.py")


def test_what_the_environment_has_as_sitecustomize_is_run_too(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.theirs = 'run'")
    ended = run("import sitecustomize; print(theirs, sitecustomize.__file__)", tmp_path, tmp_path / "own")
    assert ended.stdout.split() == ["run", str(tmp_path / "own" / "sitecustomize.py")]


def test_an_adapter_sees_a_module_after_it_was_imported_and_before_the_script(tmp_path: Path) -> None:
    (tmp_path / "framework.py").write_text("fit = 'theirs'")
    (tmp_path / "adapter.py").write_text("def adapt(module): module.fit = 'ours instead of ' + module.fit")
    adapters = "on_import.ADAPTERS['framework'] = 'adapter'"
    code = "import framework, importlib; print(framework.fit, type(framework.__loader__).__name__)"
    ended = run(code, tmp_path, adapters=adapters)
    assert ended.stdout.strip() == "ours instead of theirs SourceFileLoader"
    assert ended.stderr == ""


@pytest.mark.parametrize("fault", ["raise RuntimeError('unknown version')", "import no_such_module"])
def test_an_adapter_that_fails_is_told_and_the_script_goes_on(tmp_path: Path, fault: str) -> None:
    (tmp_path / "framework.py").write_text("fit = 'theirs'")
    (tmp_path / "adapter.py").write_text(f"def adapt(module): {fault}")
    ended = run(
        "import framework; print(framework.fit)", tmp_path, adapters="on_import.ADAPTERS['framework'] = 'adapter'"
    )
    assert ended.stdout.strip() == "theirs"
    assert "framework was not prepared for saving" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_module_that_is_missing_is_missing_with_an_adapter_too(tmp_path: Path) -> None:
    ended = run("import framework", tmp_path, adapters="on_import.ADAPTERS['framework'] = 'adapter'")
    assert "ModuleNotFoundError: No module named 'framework'" in ended.stderr
    assert "reshape" not in ended.stderr


def test_hooks_that_cannot_be_loaded_are_told_and_the_script_goes_on(tmp_path: Path) -> None:
    broken = tmp_path / "reshape_hooks"
    (broken / "startup").mkdir(parents=True)
    (broken / "startup" / "sitecustomize.py").write_bytes((PACKAGE / "startup" / "sitecustomize.py").read_bytes())
    (broken / "__init__.py").write_text("")
    (broken / "on_import.py").write_text("match = case of")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(broken / "startup")}
    argv = [sys.executable, "-c", "print('trains')"]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert ended.stdout == "trains\n"
    assert "this training is left alone" in ended.stderr
