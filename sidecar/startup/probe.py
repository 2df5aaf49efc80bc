"""Checks whether a Python script or module can start, inside the interpreter that will run it.

Promises: executes and imports nothing of it, although Python loads our hooks, as in the trainer; reports only certain
faults, so anything that may change where modules are found (a call, a module of the user's own) ends the search; prints
one JSON string, empty without a fault. `preflight` passes this text to that interpreter: standard library only, Python
3.8 and newer.
"""

import ast
import importlib.util
import json
import os
import re
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from typing import Sequence

MOVES_THE_PATH = re.compile(
    rb"sys\.path\.(append|insert|extend|remove|pop)|sys\.path\s*(\+=|=[^=]|\[)|meta_path|path_hooks|addsitedir"
)
SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.Pass)
STDLIB = [os.path.join(sysconfig.get_paths()[name], "") for name in ("stdlib", "platstdlib")]


class Undecidable(Exception):
    """Raised where later imports may be resolved differently: nothing more is certain."""


class MissingModule(Exception):
    """Raised when a module is certainly missing; names the line that imports it."""


def fault_of(kind: str, name: str) -> str:
    """Return why the script or module (`kind`) of that name cannot start in the current folder; empty if it may."""
    if kind == "script":
        if not os.path.lexists(name):
            return "no such file: %s (in %s); correct the job's command" % (name, os.getcwd())
        begin_in(os.path.dirname(os.path.realpath(name)))
        return about(name)
    begin_in(os.getcwd())
    top, _, rest = name.partition(".")
    spec = find(top)
    if spec is None:
        return "no module named %s for %s (in %s); correct the job's command" % (top, sys.executable, os.getcwd())
    alone = not rest and spec.submodule_search_locations is None and is_own(spec)
    return about(spec.origin or "") if alone else ""


def begin_in(folder: str) -> None:
    """Put the folder first on `sys.path`, as Python does unless an option says otherwise."""
    if sys.path and sys.path[0] == "":
        sys.path[0] = folder


def about(path: str) -> str:
    with open(path, "rb") as file:
        source = file.read()
    if b"\0" in source:  # an archive or bytecode
        return ""
    try:
        compile(source, path, "exec", 0, True)
        look(ast.parse(source).body, True)
    except SyntaxError as fault:
        return "%s: %s (%s, line %s); correct it" % (type(fault).__name__, fault.msg, path, fault.lineno)
    except MissingModule as fault:
        where = "(%s, line %s)" % (path, fault.args[1])
        return "no module named %s %s; install it for %s" % (fault.args[0], where, sys.executable)
    except Undecidable:
        pass
    return ""


def look(body: "Sequence[ast.stmt]", needed: bool) -> None:
    """Check the imports of these statements. `needed`: whether a failing import ends the program."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in imported(node):
                demand(name, node.lineno, needed)
        elif isinstance(node, ast.Try):
            for part in (node.body, *(one.body for one in node.handlers), node.orelse, node.finalbody):
                look(part, False)
        elif isinstance(node, ast.If) and not calls(node.test):
            look(node.body, False)
            look(node.orelse, False)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.decorator_list or calls(node.args):
                raise Undecidable
        elif not isinstance(node, SIMPLE) or calls(node) or not all(map(is_plain, getattr(node, "targets", []))):
            raise Undecidable


def imported(node: "ast.Import | ast.ImportFrom") -> "list[str]":
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if node.level == 0 and node.module else []


def demand(name: str, line: int, needed: bool) -> None:
    if name in sys.modules:
        return
    spec = find(name)
    if spec is None and needed:
        raise MissingModule(name, line)
    if spec is not None and is_own(spec):
        raise Undecidable


def find(name: str) -> "ModuleSpec | None":
    """Return the module's spec; None if there is no such module."""
    try:
        return importlib.util.find_spec(name)
    except Exception:
        raise Undecidable from None


def is_own(spec: ModuleSpec) -> bool:
    """Return whether importing it may change where others are found: a user's module may, an installed one seldom."""
    path = spec.origin or ""
    if path in ("built-in", "frozen"):
        return False
    if re.search(r"[/\\](site|dist)-packages[/\\]", path):
        if not path.endswith(".py"):
            return True  # compiled: its own imports cannot be read
        with open(path, "rb") as file:
            return bool(MOVES_THE_PATH.search(file.read()))
    return not any(path.startswith(folder) for folder in STDLIB)


def calls(node: ast.AST) -> bool:
    return any(isinstance(one, (ast.Call, ast.Await, ast.NamedExpr)) for one in ast.walk(node))


def is_plain(target: ast.AST) -> bool:
    """Return whether the target is a plain name or an environment variable."""
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
        return target.value.attr == "environ"
    return isinstance(target, ast.Name)


def main() -> None:
    try:
        sentence = fault_of(sys.argv[1], sys.argv[2])
    except Exception:  # a script that cannot be judged passes
        sentence = ""
    sys.stdout.write("\n" + json.dumps(sentence) + "\n")


if __name__ == "__main__":
    main()
