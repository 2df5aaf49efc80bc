"""Loads volcano-reshape's hooks into a training's interpreter, whose script stays unchanged.

The shim puts this folder, which holds nothing else, first on PYTHONPATH, so that Python's `site` imports this file
before the script. An interpreter that the shim starts early waits in here (`early`). Promises: another `sitecustomize`
in the environment is imported after this one; the script's path is as without us; a fault in here never ends the
script. Standard library only.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.dirname(os.path.dirname(HERE))  # contains reshape_hooks


def load() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    sys.path.insert(0, FOLDER)
    try:
        from reshape_hooks import on_import
        from reshape_hooks.files import watch  # noqa: F401  # now, as a waiting interpreter records later imports

        on_import.install()
    except Exception as fault:  # including that of an old interpreter
        try:
            sys.stderr.write("reshape: its hooks were not loaded (%r), so this training is left alone\n" % (fault,))
        except Exception:  # noqa: S110 (nobody may read it)
            pass
    finally:
        sys.path.remove(FOLDER)


def load_shadowed() -> None:
    """Import the `sitecustomize` that this file hides, if there is one."""
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as fault:
        if fault.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)  # Python looks for it there when we return


def begin() -> None:
    """Record what this process imports, if the shim asks for it; or first import it early and wait for the shim."""
    wait, path, reason = (os.environ.pop("RESHAPE_" + name, "") for name in ("WAIT", "IMPORTS", "COLD"))
    if wait:
        try:
            from reshape_hooks import early

            early.wait_turn(int(wait), path)
        except BaseException:
            os._exit(1)  # it must not run the script
    elif path:
        with_record(path, reason)
    watch_files()


def with_record(path: str, reason: str) -> None:
    try:
        from reshape_hooks import record

        record.begin_record(path, reason)
    except Exception:  # noqa: S110 (without a record restarts are cold)
        pass


def watch_files() -> None:
    """Watch what this process writes from now on, whose turn it is: the script comes next."""
    try:
        from reshape_hooks.files import watch

        here = watch.begin()
        if here is not None and os.path.isdir(here.checkpoints):
            from reshape_hooks.files import replay

            replay.begin(here)
    except Exception as fault:
        sys.stderr.write("reshape: the files of this script are not continued after a restart (%r)\n" % (fault,))


if "RESHAPE_WAIT" in os.environ:
    import _signal  # type: ignore[import-not-found]  # loaded at startup, without `signal`'s names

    _signal.setitimer(_signal.ITIMER_REAL, 0)  # it ends a waiting interpreter that does not get here
try:
    load()
    load_shadowed()
finally:
    begin()
