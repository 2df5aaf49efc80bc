"""Real trainings arrive at random while all goes wrong that can: `make soak SECONDS=600`, with `STORE=mongodb` on that.

Prints its seed, with which the same plan is carried out again (`SEED=...`), then what came of it, and ends with 1 if a
promise was broken or something is left. Ctrl-C ends it early, and cleanly.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.up import ROOT
from tests.fakes.nx import start_nx, stop_nx
from tests.soak.soak import soaking


@contextlib.contextmanager
def store_url(kind: str, folder: Path) -> Iterator[str | None]:
    """The URL of a new store; None: the SQLite file in the state folder."""
    if kind == "sqlite":
        yield None
        return
    server, address = start_nx(folder / "nx")
    try:
        yield f"{address}/reshape"
    finally:
        stop_nx(server)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--store", choices=["sqlite", "mongodb"], default="sqlite")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    given = parser.parse_args()
    print(f"seed         {given.seed} ({given.seconds:.0f} s on {given.store})", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with store_url(given.store, folder) as url, soaking(folder / "run", given.seed, given.seconds, url) as soak:
            try:
                soak.run()
            except KeyboardInterrupt:
                print("ended early; trainings are being ended", flush=True)
                return 130
            verdict = soak.judge()
            leaks = soak.leaks()
            print(soak.report(verdict, leaks))
            if verdict.violations or leaks:
                kept = ROOT / "build" / f"soak-{given.store}-{given.seed}.log"
                kept.parent.mkdir(exist_ok=True)
                kept.write_text(soak.up.log)
                print(f"The coordinators' log is kept in {kept.relative_to(ROOT)}.")
    return 1 if verdict.violations or leaks else 0


if __name__ == "__main__":
    sys.exit(main())
