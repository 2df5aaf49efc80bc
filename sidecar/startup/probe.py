"""Checks whether a Python script or module can start, in the very interpreter that is to run it.

Promises: executes nothing of it and imports nothing; names only what is certain, so whatever may change where modules
are found (a call, a module of the user's own) ends the search; prints one JSON string, empty where nothing is wrong.
Its text is handed to that interpreter by `preflight`: standard library only, Python 3.8 and newer.
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
    """What comes next may be found in another way."""


class MissingModule(Exception):
    """A module that is certainly not there; and in which line it is asked for."""


def fault_of(kind: str, name: str) -> str:
    """The sentence about `kind` (script or module) of that name, begun in the present folder."""
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
    """Python looks there first, unless it was told not to."""
    if sys.path and sys.path[0] == "":
        sys.path[0] = folder


def about(path: str) -> str:
    with open(path, "rb") as file:
        source = file.read()
    if b"\0" in source:  # an archive or byte code
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
    """Finds what these statements import. `needed`: whether they cannot go on without it."""
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
    """None where there is no such module."""
    try:
        return importlib.util.find_spec(name)
    except Exception:
        raise Undecidable from None


def is_own(spec: ModuleSpec) -> bool:
    """Whether importing it may change where others are found: the user's own does what it likes, others seldom."""
    path = spec.origin or ""
    if path in ("built-in", "frozen"):
        return False
    if re.search(r"[/\\](site|dist)-packages[/\\]", path):
        if not path.endswith(".py"):
            return True  # compiled: nobody can read what other modules it brings along
        with open(path, "rb") as file:
            return bool(MOVES_THE_PATH.search(file.read()))
    return not any(path.startswith(folder) for folder in STDLIB)


def calls(node: ast.AST) -> bool:
    return any(isinstance(one, (ast.Call, ast.Await, ast.NamedExpr)) for one in ast.walk(node))


def is_plain(target: ast.AST) -> bool:
    """A name of its own, or a variable of the environment."""
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
        return target.value.attr == "environ"
    return isinstance(target, ast.Name)


def main() -> None:
    try:
        sentence = fault_of(sys.argv[1], sys.argv[2])
    except Exception:  # whatever keeps us from judging is not said to be wrong with the script
        sentence = ""
    sys.stdout.write("\n" + json.dumps(sentence) + "\n")


if __name__ == "__main__":
    main()
