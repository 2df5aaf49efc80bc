"""The house rules that ruff, mypy and import-linter do not check. Reads the tree, runs nothing of it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import documents
from tests.saboteurs.saboteur import Outdated, saboteurs

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("reshape", "adaptive_scheduler", "coordinator", "sidecar", "launcher", "simulator", "reshape_papers")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
LAUNCHER = tuple(
    f"launcher/{name}.py"
    for name in (
        "names",
        "launch_file",
        "local_spec",
        "admission/inject",
        "admission/json_patch",
        "cluster/pods/job_spec",
    )
)
PURE = ("adaptive_scheduler/", "coordinator/model/", "sidecar/core.py", "sidecar/protocol.py", *LAUNCHER)
NOT_PURE = "simulator/"
WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(|\btime\.localtime\(")
TELLS_PEOPLE_THE_TIME = {"coordinator/adapters/clock.py"}  # the one source of times that people read

REMARK = re.compile(r'"""(?:.*?)"""|#[^\n]*', re.DOTALL)  # in code: docstrings and comments
OF_ALGORITHMS = re.compile(r"algorithms\.md[`)]*,?\s+(\d(?:\.\d+)?(?:(?:,| and| to)\s\d(?:\.\d+)?)*)")
SECTION = re.compile(r"\(([1-5]\.\d{1,2})[);:,]")  # a section of docs/algorithms.md, without its name
ID = re.compile(r"\b[GSFDX]\d{1,2}\b")  # of a place where the papers are unclear or in conflict, in the same document

# Put together here, so that this file does not hold what it looks for.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MACHINE_PATHS = re.compile("|".join(f"/{top}/" for top in ("wo" + "rk", "ro" + "ot")))
REGISTRIES = re.compile(
    "|".join(
        (
            "py" + r"pi\.org",
            "python" + r"hosted\.",
            "npm" + r"js\.",
            "arti" + "factory",
            "j" + r"frog\.",
            r"extra-ind" + "ex-url",
        )
    )
)


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def committed() -> dict[str, str]:
    """Text of every file that is, or would be, committed."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the project is not known")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    texts = {}
    for name in filter(None, names):
        try:
            texts[name] = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    return texts


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def lines_with(pattern: re.Pattern[str], texts: dict[str, str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts.items()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_every_module_says_what_it_is() -> None:
    assert [short(path) for path in MODULES if not ast.get_docstring(tree(path))] == []


def test_pure_code_has_no_clock_and_no_dice() -> None:
    impure = re.compile(r"\btime\.time\(|\brandom\.|\buuid4\b|\bdatetime\.now\(")
    pure = {short(path): path.read_text(encoding="utf-8") for path in MODULES if short(path).startswith(PURE)}
    assert lines_with(impure, pure) == []


def test_no_duration_is_measured_with_the_wall_clock() -> None:
    texts = {short(path): path.read_text(encoding="utf-8") for path in MODULES}
    timed = {name: text for name, text in texts.items() if name.startswith(("coordinator/", "sidecar/", "launcher/"))}
    assert lines_with(WALL_CLOCK, {n: t for n, t in timed.items() if n not in TELLS_PEOPLE_THE_TIME}) == []


def test_nothing_is_left_for_later() -> None:
    assert lines_with(UNFINISHED, committed()) == []


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    assert lines_with(MACHINE_PATHS, committed()) == []


def test_no_file_names_a_package_registry() -> None:
    assert lines_with(REGISTRIES, committed()) == []
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert lines_with(re.compile(r"://|^\s*(-i|--index-url|--find-links)\b"), {"requirements.lock": lock}) == []


def test_no_text_installs_our_packages_from_an_index_that_does_not_have_them() -> None:
    ours = re.compile(r"pip install (--?\S+ )*['\"]?(volcano-reshape|reshape-(client|hooks|papers))\b")
    elsewhere = {name: text for name, text in committed().items() if not name.startswith("tests/")}
    assert lines_with(ours, elsewhere) == []


def test_every_test_that_a_promise_names_exists() -> None:
    page = (ROOT / "docs" / "explanation" / "promises.md").read_text(encoding="utf-8")
    promises = re.findall(r"^\| (?!promise|---)(.+) \| `tests/([\w/]+\.py)(?:::(\w+))?` \|$", page, re.MULTILINE)
    assert len(promises) == len(re.findall(r"^\| ", page, re.MULTILINE)) - 1, "a row names no test"
    named = {(file, test) for _, file, test in promises}
    missing = [f"{file}::{test}" for file, test in sorted(named) if not has_test(ROOT / "tests" / file, test)]
    assert missing == []


CITED = re.compile(r"reliability\.md`?[^).:;]{0,60}")


def test_every_section_row_and_promise_of_the_reliability_page_that_is_cited_exists() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    known = {f"section {n}" for n in re.findall(r"^## (\d+)\.", page, re.MULTILINE)}
    known |= {f"row {n}" for n in re.findall(r"^\| (\d+) \|", page.partition("## 7.")[2], re.MULTILINE)}
    known |= set(re.findall(r"^\| (P\d+) \|", page, re.MULTILINE))
    cited = {f"{name}: {what}" for name, text in committed().items() for what in cited_in(name, text)}
    assert cited, "no file cites docs/reliability.md: the pattern is out of date"
    assert sorted(one for one in cited if one.partition(": ")[2] not in known) == []


def cited_in(name: str, text: str) -> Iterator[str]:
    """`section 4`, `row 16`, `P8`: what a Python file cites of that page."""
    flat = " ".join(text.split()) if name.endswith(".py") and name != short(Path(__file__)) else ""
    for found in CITED.finditer(flat):
        before, (sections, *rows) = flat[max(0, found.start() - 40) : found.start()], re.split(r"\brows?\b", found[0])
        yield from re.findall(r"\bP\d+\b", before + found[0])
        yield from (f"section {number}" for number in re.findall(r"(?<![P\w])\d+", sections))
        yield from (f"row {number}" for part in rows for number in re.findall(r"\b\d+", part))


def has_test(path: Path, test: str) -> bool:
    if not path.is_file():
        return False
    names = {node.name for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return not test or test in names


def cited(name: str, document: str) -> bool:
    """Whether a document exists that is named from a file: beside it, in docs/ or a folder of it, or in the root."""
    docs = ROOT / "docs"
    folders = ((ROOT / name).parent, ROOT, docs, *(docs / each for each in ("reference", "how-to", "explanation")))
    return any((folder / document).is_file() for folder in folders)


def test_every_document_that_is_cited_exists() -> None:
    missing = [
        f"{name}: {document}"
        for name, text in committed().items()
        if name.endswith((".py", ".md", ".yaml", ".yml", ".toml"))
        for document in re.findall(r"(?<![\w./-])[\w./-]*\w\.md\b", text)
        if not ("//" in document or cited(name, document))
    ]
    assert missing == []


def test_every_section_and_id_of_the_algorithms_that_is_cited_stands_there() -> None:
    algorithms = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^#+ (\d(?:\.\d+)?)\.? ", algorithms, re.MULTILINE))
    ids = set(re.findall(r"^\| ([GSFDX]\d+) \|", algorithms, re.MULTILINE))
    unknown = []
    for name, text in committed().items():
        if not name.endswith((".py", ".md")) or name == "CHANGELOG.md":
            continue
        remarks = "\n".join(REMARK.findall(text)) if name.endswith(".py") else text
        after_its_name = " ".join(OF_ALGORITHMS.findall(remarks))
        by_papers = name.startswith(("adaptive_scheduler/", "simulator/", "reshape_papers/"))
        bare = SECTION.findall(remarks) if by_papers else []
        named = {*re.findall(r"\d(?:\.\d+)?", after_its_name), *bare}
        unknown += [f"{name}: {it}" for it in sorted((named - sections) | (set(ID.findall(remarks)) - ids))]
    assert unknown == []


NAMED_ALIKE = {"__init__.py", "__main__.py", "config.py", "metrics.py"}  # what these hold is clear in each folder
ALIKE = 10  # consecutive lines that may not be equal in two places
INDIRECT = re.compile(r"(What|How|Who|Where|Why|Whether|When|Which)\b")
NUMBERED_SEED = re.compile(r"\bseeds? 00[0-9]")
CODE_CITED = re.compile(r"(?:(?<![\w/.])(?=\w[\w-]*/)|(?<=`))((?:[\w-]+/)*[\w-]+\.py)\b(?:::?([A-Za-z_][\w.]*\w))?")
EXAMPLES = {f"{folder}/NAME.py" for folder in ("adaptive_scheduler/policies", "coordinator/stores", "reshape_hooks")}
EXAMPLES |= {"train.py"}  # what users write, and contributors shall
LINK = re.compile(r"\]\(([^)\s]+)\)")
TEST_CITED = re.compile(r"(?<![\w/.])tests/[\w/]+\.py\b")


def test_a_file_name_stands_in_at_most_two_folders() -> None:
    count = Counter(path.name for path in MODULES if path.name not in NAMED_ALIKE)
    assert {name: folders for name, folders in count.items() if folders > 2} == {}


def test_the_name_of_a_public_class_occurs_once() -> None:
    """Over all packages; the hooks for frameworks show scripts of each framework the same names."""
    places: dict[str, list[str]] = {}
    for path in MODULES:
        if not short(path).startswith("reshape_hooks/"):
            for node in tree(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(short(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of the lines that are not blank; without imports and docstrings."""
    left_out = set[int]()
    for node in ast.walk(tree(path)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if isinstance(node, ast.Import | ast.ImportFrom) or text:
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and number not in left_out:
            yield number, line.strip()


def test_ten_equal_lines_do_not_stand_in_two_places() -> None:
    seen, twice = dict[tuple[str, ...], str](), list[str]()
    for path in MODULES:
        lines = list(code_lines(path))
        for at in range(len(lines) - ALIKE + 1):
            here = f"{short(path)}:{lines[at][0]}"
            block = tuple(line for _, line in lines[at : at + ALIKE])
            if (there := seen.setdefault(block, here)) != here:
                twice.append(f"{there} and {here}")
    assert twice == []


def package_of(path: Path) -> str:
    return short(path).partition("/")[0]


def test_a_module_says_what_it_does_not_in_an_indirect_question() -> None:
    assert [short(path) for path in MODULES if INDIRECT.match(ast.get_docstring(tree(path)) or "")] == []


def test_the_papers_are_called_by_their_names() -> None:
    assert lines_with(NUMBERED_SEED, {name: text for name, text in committed().items() if name != "CHANGELOG.md"}) == []


def names_in(path: Path) -> set[str]:
    """What a module defines, methods and fields of its classes as `Class.name`."""
    found = set[str]()
    for node in tree(path).body:
        found |= defined(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner}" for part in node.body for inner in defined(part)}
    return found


def defined(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.Assign():
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def meant(name: str, cited: str) -> list[Path]:
    """The modules that a file may mean: from the root, from a package, beside it; of a bare name all that have it."""
    if "/" not in cited:
        return [ROOT / one for one in committed() if Path(one).name == cited]
    return [
        path
        for folder in (ROOT, *map(ROOT.joinpath, PACKAGES), (ROOT / name).parent)
        if (path := folder / cited).is_file()
    ]


def test_every_module_and_name_in_it_that_is_cited_exists() -> None:
    """`engine.py`, `policies/cpu.py`, `adaptive_scheduler/engine.py:decide`, with the name that stands behind it."""
    missing = []
    for name, text in committed().items():
        if name == "CHANGELOG.md" or not name.endswith((".md", ".py", ".toml", ".yaml", ".yml")):
            continue
        remarks = "\n".join(REMARK.findall(text)) if name.endswith(".py") else text
        for module, inside in CODE_CITED.findall(remarks):
            paths = meant(name, module)
            if module not in EXAMPLES and not any(not inside or inside in names_in(path) for path in paths):
                missing.append(f"{name}: {module}{inside and ':' + inside}")
    assert missing == []


def anchors(document: Path) -> set[str]:
    """Of the headings of a document, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_every_link_of_a_document_leads_somewhere() -> None:
    broken = []
    for name, text in committed().items():
        for link in LINK.findall(text) if name.endswith(".md") else ():
            file, _, anchor = link.partition("#")
            target = (ROOT / name).parent / file if file else ROOT / name
            if ":" in file:
                continue
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                broken.append(f"{name}: {link}")
    assert broken == []


def test_every_test_that_is_named_exists() -> None:
    named = {
        (name, test)
        for name, text in committed().items()
        if name != "CHANGELOG.md"
        for test in TEST_CITED.findall(text)
    }
    assert sorted(f"{name}: {test}" for name, test in named if not (ROOT / test).is_file()) == []


def plays() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((ROOT / "playbooks").glob("*.yml")):
        for play in yaml.safe_load(path.read_text(encoding="utf-8")):
            yield path.name, play


def test_every_line_that_a_saboteur_breaks_stands_once_in_its_file_and_its_tests_exist() -> None:
    """Else `make sabotage` would end there only minutes later."""
    found: list[str] = []
    for one in saboteurs():
        try:
            one.applied((ROOT / one.file).read_text(encoding="utf-8"))
        except Outdated as fault:
            found.append(str(fault))
        for test in one.tests:
            path, _, name = test.partition("::")
            file = ROOT / path
            if not file.is_file() or (f"def {name}(" if name else "def ") not in file.read_text(encoding="utf-8"):
                found.append(f"{one.name}: there is no test {test}")
    assert found == []


def test_playbooks_log_no_secret() -> None:
    open_ = [
        f"{name}: {task.get('name')}"
        for name, play in plays()
        for task in play.get("tasks", [])
        if re.search(r"key|token|passw|secret", str(task), re.IGNORECASE) and task.get("no_log") is not True
    ]
    assert open_ == []


def test_playbooks_gather_no_facts_and_name_every_task() -> None:
    assert all(play.get("gather_facts") is False for _, play in plays())
    assert all(task.get("name") for _, play in plays() for task in play["tasks"])


def test_the_shim_is_standard_library_only_and_python_3_8() -> None:
    text = (ROOT / "sidecar" / "shim.py").read_text(encoding="utf-8")
    parsed = ast.parse(text, "shim.py", feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(parsed)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "."]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names


def test_every_block_of_code_names_its_language() -> None:
    assert [block.place for name in documents.names() for block in documents.blocks(name) if not block.language] == []


def test_every_script_of_a_document_is_run_or_says_why_not() -> None:
    """Commands (`sh`) are run by `tests/e2e/test_documents.py` unless a comment above them says otherwise."""
    unmarked = [
        block.place
        for name in documents.names()
        for block in documents.blocks(name)
        if block.language in ("python", "bash") and not (block.title or block.marks.keys() & {"not run", "run by"})
    ]
    assert unmarked == []


def test_only_blocks_of_sh_hold_commands() -> None:
    command = re.compile(r"^(\$ |reshape [a-z]|make [a-z]|kubectl |pip )", re.MULTILINE)
    hidden = [
        block.place
        for name in documents.names()
        for block in documents.blocks(name)
        if block.language == "text" and command.search(block.text) and not name.endswith("command-line.md")
    ]
    assert hidden == []
