"""A training that does not seed itself draws the same numbers in each generation; one that does draws its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import reshape_hooks

STARTUP = Path(reshape_hooks.__file__).parent / "startup"
TORCH = "seeds = []\nmanual_seed = seeds.append\n"  # what is called of PyTorch; the real one is in test-frameworks
DRAW = "print(random.random(), np.random.rand(), np.random.default_rng().random(), np.random.default_rng(1).random())"
USE = f"import random, numpy as np, torch; {DRAW}"


def drawn(folder: Path, code: str, **env: str) -> list[str]:
    """Run the code as a trainer of a job that is called a, unless it is said otherwise; return the words it prints."""
    (folder / "torch.py").write_text(TORCH)
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{STARTUP}{os.pathsep}{folder}", "RESHAPE_JOB_ID": "a"} | env
    argv = [sys.executable, "-c", code]
    ended = subprocess.run(argv, env=given, capture_output=True, text=True, check=True)
    assert not ended.stderr
    return ended.stdout.split()


def test_each_generation_of_a_job_draws_the_same_and_other_jobs_and_ranks_draw_others(tmp_path: Path) -> None:
    first, again, other = (drawn(tmp_path, USE, RESHAPE_JOB_ID=job) for job in "aab")
    second_rank = drawn(tmp_path, USE, RANK="1")
    assert first == again
    for k in range(3):
        assert len({first[k], other[k], second_rank[k]}) == 3
    assert first[3] == other[3], "a generator that has a seed keeps it"


def test_the_runs_of_a_rehearsal_draw_the_same(tmp_path: Path) -> None:
    first, again, other = (
        drawn(tmp_path, USE, RESHAPE_JOB_ID=job, RESHAPE_SEEDS_OF=name) for job, name in ("ax", "bx", "ay")
    )
    assert first == again
    assert first[:3] != other[:3]


def test_pytorch_is_seeded_when_it_is_imported_and_the_script_can_seed_it_again(tmp_path: Path) -> None:
    first, second = drawn(tmp_path, "import torch; torch.manual_seed(7); print(*torch.seeds)")
    assert int(first) > 0
    assert second == "7"


def test_what_the_script_has_seeded_before_it_imports_the_framework_is_left_as_it_is(tmp_path: Path) -> None:
    seeds = "import random, numpy as np; random.seed(3); np.random.seed(4)"
    with_torch = drawn(tmp_path, f"{seeds}; import torch; print(random.random(), np.random.rand())")
    assert with_torch == drawn(tmp_path, f"{seeds}; print(random.random(), np.random.rand())")


def test_what_is_imported_after_the_framework_is_seeded_too(tmp_path: Path) -> None:
    late = f"import torch, random, numpy as np; {DRAW}"
    assert drawn(tmp_path, late) == drawn(tmp_path, USE)


def test_a_script_without_a_framework_draws_what_it_always_did(tmp_path: Path) -> None:
    code = "import random, numpy as np; print(random.random(), np.random.rand())"
    assert drawn(tmp_path, code) != drawn(tmp_path, code)


def test_processes_of_multiprocessing_do_not_all_draw_the_same(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text("import random, torch\ndef draw(_): return random.random()\n")
    code = (
        "import child, multiprocessing as m\n"
        "if __name__ == '__main__':\n"
        "    for _ in range(2):\n"
        "        with m.get_context('spawn').Pool(1) as pool: print(*pool.map(child.draw, [0]))"
    )
    first, second = drawn(tmp_path, code)
    assert first != second
