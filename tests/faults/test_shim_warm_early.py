"""Nothing that a trainer survived fails the interpreter that waits beside it, and none does early what it must not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace as Named

import pytest

from reshape_hooks import early
from tests.faults.test_shim_warm import SCRIPT, counting, runs, stopped, until_ready, waiting, warm_shim
from tests.patience import eventually

ROOT = Path(__file__).resolve().parents[2]
__all__ = ["counting"]  # a fixture


class Installed:
    """A job's folder with its script, and a folder of installed modules."""

    def __init__(self, folder: Path, script: str, **modules: str) -> None:
        self.folder, self.packages = folder, folder / "site-packages"
        self.packages.mkdir()
        (folder / "script.py").write_text(SCRIPT.replace("import decimal, mine, wave", f"{script}\nimport mine"))
        for name, text in modules.items():
            self.module(name, text)

    def module(self, name: str, text: str) -> None:
        """Write an installed module, that writes its name and process down when it is imported, and does this."""
        counts = f"import os\nopen({str(self.folder / name)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        (self.packages / f"{name}.py").write_text(counts + text)

    def imported(self, name: str) -> list[int]:
        """The processes that have imported the module, in order."""
        file = self.folder / name
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    def shim(self, command: list[str], **env: str):
        return warm_shim(self.folder, command, {"PYTHONPATH": str(self.packages), **env})


FAILS = "import fails_inside\nraise RuntimeError('it was built for another version')"
TRIES = "try:\n    import fails\nexcept RuntimeError:\n    pass\nimport later\n"


def test_an_import_that_failed_in_the_trainer_is_left_to_the_script_and_all_others_are_early(tmp_path, counting):
    """As of an installed package that was built for another version of PyTorch: the script goes on without it."""
    modules = {"fails": FAILS, "fails_inside": "", "later": "", "first": ""}
    here = Installed(tmp_path, f"import first\n{TRIES}", **modules)
    with here.shim(counting) as shim:
        for number in (1, 2, 3):
            runs(shim, number)
            assert shim.client.status()["trainer_pid"] in here.imported("fails"), "the script tries it each time"
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            one = waiting(shim)
            assert one in here.imported("first") and one in here.imported("later")
            assert one not in here.imported("fails")
            stopped(shim, number)


@pytest.mark.parametrize("again", [False, True])
def test_an_installed_module_that_imports_the_users_is_left_to_the_script(tmp_path, counting, again):
    """`again`: by another installed module, which ends early imports there."""
    modules = {"library": "import plugin", "later": "import library" if again else "", "first": ""}
    here = Installed(tmp_path, "import first, library, later", **modules)
    (tmp_path / "plugin.py").write_text("import os; open('plugged', 'a').write(f'{os.getpid()} ')")
    why = "it imports plugin, which is not an installed module"
    with here.shim(counting) as shim:
        for number in (1, 2, 3):
            runs(shim, number)
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            said = f"MiB); library is left to the script ({why})"
            said += f"; early imports end before later ({why})" if again else ""
            assert shim.client.status()["warm"].endswith(said)
            assert waiting(shim) in here.imported("first")
            assert (waiting(shim) in here.imported("later")) is not again
            assert len(here.imported("plugged")) == number
            stopped(shim, number)


def test_what_a_library_only_looks_for_in_the_jobs_folder_is_found_and_not_imported(tmp_path, counting):
    """As `wandb` or `datasets`: packages that libraries look for, and folders that a training may have beside it."""
    looks = "import importlib.util\nFOUND = importlib.util.find_spec('wandb') is not None\n"
    here = Installed(tmp_path, "import looks\nprint('found', looks.FOUND)\nimport wandb.mine", looks=looks)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "mine.py").write_text("import os; open('wandb.pids', 'a').write(f'{os.getpid()} ')")
    with here.shim(counting, PYTHONPATH=f"{here.packages}{os.pathsep}{tmp_path}") as shim:
        for number in (1, 2, 3):
            runs(shim, number)
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            assert waiting(shim) in here.imported("looks")
            assert str(waiting(shim)) not in (tmp_path / "wandb.pids").read_text()
            stopped(shim, number)
        assert shim.output.read_text().count("found True\n") == 3


TORCH = """
import os
def usable():
    return bool(os.environ['CUDA_VISIBLE_DEVICES'])
from torch import version, cuda
usable_at_import = cuda.is_available()
import wave
def helper():
    return cuda.device_count()
"""
CUDA = """
from torch import usable
import decimal
def is_available():
    return usable()
def device_count():
    return int(usable())
"""


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        ("os.environ['CUDA_VISIBLE_DEVICES'] or exit('no GPU')", "no GPU"),
        ("os.environ['CUDA_VISIBLE_DEVICES'] or os.abort()", "the waiting interpreter ended"),
        ("device = open(THE_FILE, 'w')", "an import opens a device (THE_FILE)"),
        (
            "import torch\ntry:\n    torch.cuda.is_available()\nexcept:\n    pass",
            "library asks for GPUs while it is imported",
        ),
        ("import torch\nGPUS = torch.helper()", "library asks for GPUs while it is imported"),
    ],
)
def test_early_imports_end_before_the_one_that_needs_a_gpu(tmp_path, counting, library, reason):
    device = str(tmp_path / "nvidia-like")
    here = Installed(tmp_path, "import first, library, later", first="", later="")
    here.module("library", library.replace("THE_FILE", repr(device)))
    (tmp_path / "script.py").write_text(
        (tmp_path / "script.py").read_text().replace("import first", "import torch, first")
    )
    torch = here.packages / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text(TORCH)
    (torch / "cuda.py").write_text(CUDA)
    (torch / "version.py").write_text("cuda, hip = '13.0', None\n")
    hooks = f"from reshape_hooks import early; early.DEVICES = ({device!r},)"
    (here.packages / "sitecustomize.py").write_text(hooks if "device" in library else "")
    said = reason.replace("THE_FILE", device)
    with here.shim(counting) as shim:
        for number in (1, 3, 5):  # with a GPU
            shim.client.start(number, ["A"])
            eventually(lambda n=number: f"runs {n} A\n" in shim.output.read_text(), "it runs")
            assert shim.client.status()["trainer_pid"] in here.imported("library")
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            assert f"early imports end before library ({said})" in shim.client.status()["warm"]
            assert waiting(shim) in here.imported("first")
            assert waiting(shim) not in here.imported("later")
            stopped(shim, number)


@pytest.mark.parametrize(
    ("module", "state", "framework"),
    [
        ("jax._src.xla_bridge", {"_backends": {}, "_backend_factories": {"cpu": 1, "cuda": 1}}, ""),
        ("jax._src.xla_bridge", {"_backends": {"cpu": 1}, "_backend_factories": {"cpu": 1}}, ""),
        ("jax._src.xla_bridge", {"_backends": {"cpu": 1}, "_backend_factories": {"cpu": 1, "cuda": 1}}, "JAX"),
        ("tensorflow.python.eager.context", {"_context": None}, ""),
        ("tensorflow.python.eager.context", {"_context": Named(_initialized=False, _physical_devices=None)}, ""),
        (
            "tensorflow.python.eager.context",
            {"_context": Named(_initialized=False, _physical_devices=[])},
            "TensorFlow",
        ),
        ("tensorflow.python.eager.context", {"_context": Named(_initialized=True)}, "TensorFlow"),
    ],
)
def test_a_framework_that_has_chosen_its_devices_without_gpus_is_known(monkeypatch, module, state, framework):
    monkeypatch.setitem(sys.modules, module, Named(**state))
    assert early.chosen() == framework


@pytest.mark.parametrize("where", ["apart", "work copy", "own"])
def test_packages_that_pythonpath_names_apart_from_the_jobs_folder_are_imported_early(tmp_path, counting, where):
    """As environment modules ship all packages. What the user writes in is imported by the script only."""
    place = tmp_path / ("job/src" if where == "own" else "apart")
    (place / "inside").mkdir(parents=True)
    if where == "work copy":
        (tmp_path / "apart" / ".git").mkdir()
    (tmp_path / "job").mkdir(exist_ok=True)
    for name, script in (("mine.py", ""), ("script.py", SCRIPT.replace("import decimal", "import inside.part"))):
        (tmp_path / "job" / name).write_text(script or (tmp_path / name).read_text())
    (place / "inside" / "__init__.py").write_text("try:\n    from inside import added\nexcept ImportError:\n    pass\n")
    (place / "inside" / "part.py").write_text(
        f"import os; open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}} ')"
    )
    with warm_shim(tmp_path / "job", counting, {"PYTHONPATH": f"{place.parent}//{place.name}/"}) as shim:
        for number in (1, 2, 3):
            runs(shim, number)
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            assert (str(waiting(shim)) in (tmp_path / "pids").read_text()) is (where == "apart")
            stopped(shim, number)
        if where == "apart":
            (place / "inside" / "added.py").write_text("")  # which was looked for in vain
            runs(shim, 4)
            assert shim.client.status()["cold"] == f"{place / 'inside'} was edited meanwhile"


def test_a_module_that_the_job_gets_meanwhile_is_found_before_an_installed_one(tmp_path, counting):
    here = Installed(tmp_path, "import library", library="import helper", helper="print('installed')")
    with here.shim(counting) as shim:
        for number in (1, 2):
            runs(shim, number)
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            stopped(shim, number)
        (tmp_path / "helper.py").write_text("print('mine')")
        runs(shim, 3)
        assert (
            shim.client.status()["cold"]
            == f"the job's own folder holds other modules by now ({tmp_path / 'helper.py'})"
        )
        assert shim.output.read_text().count("mine\n") == 1


LOADED = """
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void begin(void) {
    FILE *file = fopen("PIDS", "a");
    fprintf(file, "%d ", getpid());
    fclose(file);
    DOES
}
"""


def built(folder: Path, name: str, text: str = "", *needs: Path) -> Path:
    """A shared library of this name, that writes the processes that load it into the file `name`.pids."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.c"
    source.write_text(LOADED.replace("PIDS", f"{folder / name}.pids").replace("DOES", text))
    command = ["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed", f"-Wl,-soname,{name}", "-o", str(folder / name)]
    subprocess.run([*command, str(source), *map(str, needs)], check=True)
    return folder / name


def loaded_by(library: Path) -> list[int]:
    return [int(word) for word in library.with_name(f"{library.name}.pids").read_text().split()]


@pytest.fixture
def computing(tmp_path: Path, counting: list[str]) -> tuple[Installed, list[Path]]:
    """A job whose framework loads its shared libraries at the first step; one of them needs another one."""
    folder = tmp_path / "site-packages" / "nvidia"
    here = Installed(tmp_path, "import framework")
    base = built(folder / "cublas" / "lib", "libcublasLt.so.13")
    needs = built(folder / "cublas" / "lib", "libcublas.so.13", "", base)
    driver = built(tmp_path / "driver", "libcudart_stays.so.1")
    cudnn = built(folder / "cudnn" / "lib", "libcudnn_graph.so.9")
    here.module("framework", f"import ctypes\nctypes.CDLL({str(base)!r}, ctypes.RTLD_GLOBAL)\n")
    script = (tmp_path / "script.py").read_text()
    paths = [str(path) for path in (driver, base, needs, cudnn)]
    steps = f"import ctypes\nfor path in {paths}:\n    ctypes.CDLL(path)"
    (tmp_path / "script.py").write_text(script.replace('print("runs"', f'{steps}\nprint("runs"'))
    return here, [needs, base, cudnn, driver]


def test_shared_libraries_of_the_first_steps_are_loaded_while_an_interpreter_waits(computing, counting):
    here, (needs, base, cudnn, driver) = computing
    with here.shim(counting) as shim:
        for number in (1, 2, 3):
            runs(shim, number)
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            one = waiting(shim)
            assert all(loaded_by(path).count(one) == 1 for path in (needs, base, cudnn))
            assert one not in loaded_by(driver), "only those that compute"
            assert shim.client.status()["warm"].endswith("MiB)")
            stopped(shim, number)
        runs(shim, 4)
        assert all(loaded_by(path).count(one) == 1 for path in (needs, base, cudnn)), "there is one of each"
        until_ready(shim)
        stopped(shim, 4)
        cudnn.write_bytes(cudnn.read_bytes() + b"\0")
        runs(shim, 5)
        assert shim.client.status()["cold"] == f"{cudnn} was edited meanwhile"


def test_shared_libraries_that_are_gone_or_cannot_be_loaded_are_left_out(tmp_path):
    base = built(tmp_path / "lib", "libcublasLt.so.13")
    needs = built(tmp_path / "lib", "libcublas.so.13", "", base)  # it is found once the other one is loaded
    other = built(tmp_path / "lib", "libcufft.so.1", "", built(tmp_path / "gone", "libgone.so.1"))
    paths = [str(path) for path in (tmp_path / "libcudnn.so.9", needs, other, base)]
    code = f"from reshape_hooks import early; print(early.load_libraries({paths}), early.load_libraries({paths}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == f"{[str(base), str(needs)]} []\n"


@pytest.mark.parametrize("how", ["device", "abort"])
def test_an_interpreter_waits_without_shared_libraries_that_open_a_gpu(tmp_path, counting, how):
    device = str(tmp_path / "nvidia-like")
    alone = '    if (getenv("RESHAPE_GENERATION") == NULL || getenv("CUDA_VISIBLE_DEVICES")[0] == 0)\n        '
    does = {"device": f'open("{device}", O_CREAT | O_RDWR, 0600);', "abort": "abort();"}[how]
    library = built(tmp_path / "lib", "libcudnn.so.9", f"{alone}{does}")
    here = Installed(tmp_path, "import first", first="")
    script = (tmp_path / "script.py").read_text()
    (tmp_path / "script.py").write_text(
        script.replace('print("runs"', f'import ctypes; ctypes.CDLL({str(library)!r})\nprint("runs"')
    )
    (here.packages / "sitecustomize.py").write_text(f"from reshape_hooks import early; early.DEVICES = ({device!r},)")
    reason = {"device": f"a shared library opens a device ({device})", "abort": "the waiting interpreter ended"}[how]
    with here.shim(counting) as shim:
        for number in (1, 3, 5):
            shim.client.start(number, ["A"])
            eventually(lambda n=number: f"runs {n} A\n" in shim.output.read_text(), "it runs")
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            assert shim.client.status()["warm"].endswith(f"; no shared library is loaded early ({reason})")
            assert waiting(shim) in here.imported("first")
            assert waiting(shim) not in loaded_by(library)
            stopped(shim, number)
