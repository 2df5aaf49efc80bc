"""Writes the tables of docs/papers.md: every table, figure and claim of the four papers beside our result.

Each row has the paper's figure, ours simulated, ours live, a verdict (`verdicts.py`), and for a miss the reason
(`reasons.py`). Called by `reshape paper all`, by `make reference` and by tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reshape_papers.papers import causes, reasons, results, verdicts
from reshape_papers.papers.claims import CLAIMS, Claim, binpack, overheads
from reshape_papers.papers.results import Figures
from reshape_papers.published_figures import PublishedFigure, published

BEGIN = "<!-- begin: written by reshape paper all -->\n"
END = "<!-- end: written by reshape paper all -->\n"
CLONE = Path(__file__).parents[2]
PAGE = Path("docs/papers.md")
NONE = "-"
PAPERS = {"SideCar scheduling": ("case-study", "elastic-"), "SpeCon": ("specon-",), "FlowCon": ("flowcon-",),
          "Slaml": ("deadline-",)}  # fmt: skip
COLUMNS = ("Policy", "Measure", "Paper", "Simulated", "Verdict", "Reason", "Live", "Live verdict", "Live reason")


def write(simulated: Figures) -> list[Path]:
    """Write the figures and the page in a clone; return what was written: nothing outside a clone."""
    path = CLONE / PAGE
    if not path.is_file():
        return []
    kept = Path(__file__).parent / results.SIMULATED
    kept.write_text(results.as_text(simulated), encoding="utf-8")
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
    return [kept, path]


def page(text: str) -> str:
    """Return docs/papers.md with everything between its markers regenerated from the kept figures."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    simulated, live = results.load(), results.load(results.LIVE)
    return before + BEGIN + "\n".join(_sections(simulated, live)) + "\n" + END + after


def _sections(simulated: Figures, live: Figures) -> Iterator[str]:
    yield "### Verdicts\n"
    yield from (f"* {rule}" for rule in verdicts.RULES)
    for paper, prefixes in PAPERS.items():
        yield f"\n### {paper}, beside its figures\n"
        for name in results.EXPERIMENTS:
            if name.startswith(prefixes):
                yield from _experiment(name, simulated, live)
        yield from _claims(
            [claim for claim in (*CLAIMS, overheads(simulated, live), binpack(simulated, live)) if claim.paper == paper]
        )
    yield "\n### Reasons\n"
    yield from (f"* **{name}** {text}" for name, text in {**reasons.TEXTS, **reasons.LIVE_TEXTS}.items())
    yield from _causes(simulated)


def _experiment(name: str, simulated: Figures, live: Figures) -> Iterator[str]:
    seeds = simulated[name]["seeds"] if name in simulated else 0
    over = f"mean of {seeds} seeds ± the standard deviation of one" if seeds > 1 else "nothing is drawn"
    yield f"`reshape paper {name}` ({reasons.place(name)}; {over})\n"
    yield _head(COLUMNS)
    for figure in published(name):
        if figure.paper is not None or figure.against is not None:
            yield _row(row(name, figure, simulated, live))
    yield ""


def row(name: str, figure: PublishedFigure, simulated: Figures, live: Figures) -> tuple[str, ...]:
    """Return the cells of one figure, in the order of `COLUMNS`: simulated and live each have their own verdict."""
    found = results.kept_figure(simulated, name, figure)
    really = results.kept_figure(live, name, figure)
    verdict = "not simulated"
    lived = NONE
    if found:
        verdict = verdicts.verdict_on(figure, found["ours"], simulated[name]["seeds"], found["spread"]) or NONE
    if really:
        lived = verdicts.live_verdict_on(figure, really["ours"], live[name]["seeds"], really["spread"]) or NONE
    measure = figure.label + (f" to {figure.against}" if figure.against else "")
    return (
        f"`{figure.policy}`", f"`{measure}`", _cell_of_paper(figure),
        _cell(found), verdict, NONE if _needs_no_reason(verdict) else reasons.reason_of(name, figure) or "",
        _cell(really), lived, NONE if _needs_no_reason(lived) else reasons.live_reason_of(name, figure, lived) or "",
    )  # fmt: skip


def _cell_of_paper(figure: PublishedFigure) -> str:
    if figure.paper is not None:
        return f"{figure.paper:g}"
    return NONE if figure.is_ours else "falls"


def _needs_no_reason(verdict: str) -> bool:
    return verdict == NONE or verdicts.is_settled(verdict)


def _cell(kept: results.Kept | None) -> str:
    if kept is None:
        return NONE
    return f"{kept['ours']:g}" + ("" if not kept["spread"] else f" ± {kept['spread']:.2g}")


def _claims(claims: list[Claim]) -> Iterator[str]:
    yield "Its other tables, figures and claims:\n"
    yield _head(
        (
            "Where",
            "What it shows",
            "Paper",
            "Simulated",
            "Shown by",
            "Verdict",
            "Reason",
            "Live",
            "Live verdict",
            "Live reason",
        )
    )
    for c in claims:
        yield _row(
            (
                c.where,
                c.what,
                c.figure,
                c.simulated,
                c.shown_by,
                c.verdict,
                c.reason,
                c.live,
                c.live_verdict,
                c.live_reason,
            )
        )
    yield ""


def _causes(simulated: Figures) -> Iterator[str]:
    yield "\n### One thing changed\n"
    yield "What the reasons rest on: the same experiment once more with one of its inputs changed.\n"
    yield _head(("Experiment", "Changed", "Policy", "Measure", "Paper", "As it is", "Changed so"))
    for cause in causes.CAUSES:
        for figure in cause.figures:
            cells = [_cell(results.kept_figure(simulated, name, figure)) for name in (cause.experiment, cause.name)]
            measure = figure.label + (f" to {figure.against}" if figure.against else "")
            paper = NONE if figure.paper is None else f"{figure.paper:g}"
            yield _row((cause.experiment, cause.changed, f"`{figure.policy}`", f"`{measure}`", paper, *cells))


def _head(cells: tuple[str, ...]) -> str:
    return _row(cells) + "\n" + _row(("---",) * len(cells))


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
