"""Names each experiment's place in its paper, and why a figure misses the paper's.

`_RULES` names the reason for each figure: the first rule that fits applies. Called by `page.py`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from reshape_papers.papers import causes, verdicts
from reshape_papers.published_figures import PublishedFigure, original
from reshape_papers.workloads import measured_contention

_PLACES: Mapping[str, str] = {
    "case-study": "II-C, Figures 3 and 4",
    "elastic-w1": "Figures 6 to 8 and 11, Table VIII",
    "elastic-w2": "Figure 6, Table VIII",
    "elastic-w3": "Figure 6, Table VIII",
    "elastic-w4": "Figure 6, Table VIII",
    "specon-fixed": "Figure 5",
    "specon-parameters": "Table III",
    "specon-random-20": "Figure 6",
    "specon-random-30": "Figure 7",
    "specon-random-50": "Figure 12",
    "flowcon-fixed": "Figures 3 and 7",
    "flowcon-parameters": "Figures 3 to 6, Table 2",
    "flowcon-contention": "Figure 3",
    "flowcon-random-5": "Figure 9",
    "flowcon-random-10": "Figure 12",
    "flowcon-random-15": "Figure 17",
    "deadline-gang": "Figure 4",
    "deadline-binpack": "Figure 4",
    "deadline-task-topology": "Figure 4",
}

TEXTS: Mapping[str, str] = {
    "length": "Jobs train two epochs of ImageNet here, one in the paper: at the seconds on one GPU that others "
    "measured one epoch does not fill 16 GPUs until 20,000 s, as the paper's default scheduler does. Longer jobs make "
    "each reshape a smaller share of their time, and termination's fewer. With one epoch its overhead is two thirds "
    "of the paper's, but then little is left to gain in makespan; at the seconds of Table IV, three times as long, it "
    "is less than a tenth. The paper's own overheads and makespans fit no single length: termination's 46 additions "
    "at the case study's 242 s each are 11,132 s, 29.3 % of which only jobs of 950 s on average have. A termination "
    "that does not count its restarts has three quarters of W2's overhead, on measured speeds nearly all of it. The "
    "16 additions of the paper's framework come out with no length tried.",
    "baseline": "The gain is that of the baseline's waste. The default scheduler wastes what jobs do not gain from 8 "
    "GPUs: on the speeds of Figure 2 the makespan beside it is the paper's, on 8 GPUs as fast as on 2 or as on 4 a "
    "little less and more. Small requests first, another way to read the paper, changes little, and its pending jobs "
    "are the paper's; where no job passes another the gain is larger than the paper's. Termination wastes its "
    "restarts, of which the paper has more (*length*): with one epoch a job the mean beside it is the paper's, the "
    "makespan is not; with speeds by batch on 2 and 4 GPUs, too, the makespan nearly is.",
    "speeds": "On several GPUs jobs have others' measured speeds here, with which they gain from 8 GPUs, up to 5.6 "
    "times: so the default scheduler wastes less. The same draws on the speeds of Figure 2 are `elastic-w1` and "
    "`elastic-w2`. Beside termination the gain is that of its restarts (*length*).",
    "moves": "A job that a baseline starts on a K80 stays there, seven times as slow as on a V100 at the seconds on "
    "one GPU that others measured; ours moves to a V100 that becomes idle. Without moves the makespan beside the "
    "default scheduler's comes near the paper's.",
    "drawn": "Arrivals, types and sizes of the paper's one run are not published; of ours the mean of several draws "
    "is printed, and this figure differs by as much between draws.",
    "few": "Only 20 jobs: they do not fill the GPUs at these speeds, so that there is less to win. As long as an "
    "epoch is at the seconds of Table IV, the makespan beside the default scheduler's gains more than the paper's. "
    "Beside termination the gain is that of its restarts (*length*).",
    "cost": "One number stands for all starts and stops in the case study's fit, which gives the paper's makespans. "
    "With the seconds of Figure 1 in its place that of termination is 5 % longer than the paper's: its own figures of "
    "one reshaping and of whole runs differ by as much.",
    "alone": "Of equal jobs that arrive evenly hardly two are on a node at a time, and the paper's rule asks for a "
    "move only beside more than one job that still progresses (S7): so it never asks. Counted over all nodes, as the "
    "line can be read that names no worker, jobs move; but four gain, five lose, and the mean rises. Nor could it gain "
    "as much: one job after another on the nodes, the best for equal jobs of 215 s, has a mean of 245 s, the paper "
    "234.7 s. Where each further job costs 30 % of the speed a VAE has 204 s of work, the paper's mean is possible and "
    "DS has the paper's makespan within 1 %, but still no job asks. With jobs of unequal length nodes become uneven, "
    "and moves gain a part of the paper's.",
    "equal": "20 jobs of equal length, five a node, end at nearly the same time: where they lose no speed to each "
    "other the default scheduler is within 2 % of the least possible makespan. With jobs of unequal length the "
    "makespan gains half of the paper's or more, the mean a fifth.",
    "recorded": "Work and losses are those of small models on small data, recorded on one machine, not the paper's; "
    "their lengths in proportion to each other and the draw of models and arrivals differ, too.",
    "competition": f"Jobs lose {100 * measured_contention.per_job():.2g} % of their speed to each further one on "
    "their node, as trainings of the zoo did on one core here; what the paper's lost is not said. With 10 % the 50 "
    "jobs gain two thirds or more of the paper's makespan and mean, with 15 % all or more; with 15 % the 30 gain its "
    "makespan, with 30 % the 20 about two thirds of it or more, and both nearly half of its mean or more, though DS "
    "then takes two to three times as long as the paper's. Besides, the recorded trainings are of nearly equal length, "
    "6 to 14 s of CPU time (how many epochs each has was ours to choose), so that nodes stay even; with the unequal "
    "works that were fitted to the paper's times the same recorded losses gain most of what `specon-fitted-20`, `-30` "
    "and `-50` gain.",
    "work": "The work and the curves of these models are not published; ours are invented so that the default "
    "scheduler takes about as long (with SpeCon's 30 jobs 1.4 times as long). Moves gain by evening out unequal nodes, "
    "and how unequal they are is drawn: of jobs of equal work the 30 gain a seventh to a half as much. Of ten such "
    "jobs under FlowCon the best gains less, and the worst loses half as much.",
    "conserved": "In the model a node does the same work a second whatever the limits, so that one job gains "
    "what another loses. `flowcon-contention` has three jobs that lose 8 % of their speed to each further one; where "
    "the ten lose 15 % their makespan falls as the paper's does.",
    "curves": "MNIST has one curve on both frameworks here. With one for each (found by search, as neither is "
    "published) both times come near the paper's, MNIST(P) within a tenth.",
    "short": "The worst job is one whose loss is flat early (a GRU, a VAE): it is limited from then on and pays for "
    "all others, the more the shorter it is. Where every loss falls as evenly as the fitted one of MNIST the worst "
    "loses a tenth of its time; of jobs of equal work it loses less, too. With the recorded losses and works fitted to "
    "the paper's times, where the flat ones are the shortest, even the mean rises. Jobs that lose 15 % of their speed "
    "to each further one lose less to limits, too: the worst 0.14. The paper's lengths and curves are not published.",
    "interval": "The curves have no noise. Where each value deviates by 2 % of the fall the times are 3 to 5 s longer, "
    "nearer to the paper's, and single draws differ by 5 s; the paper's own figures of one setting (10 %, 20 s) differ "
    "by 7 points between its two tables.",
    "count": "One job gains what another loses (*conserved*), and a job that a limit does not touch does neither. "
    "Where each further job costs 8 % of the speed five and a half of ten end earlier, with 15 % six and a half.",
    "cold": "Each start is a process of its own that imports PyTorch or TensorFlow of today, which is most of its "
    "time. In the product an interpreter waits with these imports done; that is not counted here. The machine had "
    "nothing else to do. How the paper's trainings start again is not said.",
    "order": "At the load of nine tenths here both nodes are full, and what a deadline brings forward puts another job "
    "off: 1 to 2 % are less than draws differ by. At a third of that load, with more speed lost to pods beside each "
    "other, `deadline` is 1 to 8 % below each placement alone; the paper's method as printed is not.",
    "load": "In the paper a node's load slows all of its pods. At the load of nine tenths here both nodes are full "
    "whatever the placement, so that binpack's response time is within 2 % of the others'; at a third of that load, "
    "and with more speed lost to pods beside each other, it is the highest.",
}  # fmt: skip

LIVE_TEXTS: Mapping[str, str] = {
    "live-costs": "The jobs and their speeds are those of the simulation, and so is the waste of the default scheduler "
    f"that there is to gain. On cores that others used as well a start took {causes.LIVE_START_S:g} s and a reshape "
    f"{causes.LIVE_RESHAPE_S:g} s, at this scale {causes.live_s(causes.LIVE_START_S):.0f} and "
    f"{causes.live_s(causes.LIVE_RESHAPE_S):.0f} s of the paper's, where 108 and 37 are simulated: with these the "
    "simulation gives the live makespans within 5 %. The mean completion time under the default scheduler hangs on "
    "small things: in one draw a start that takes a tenth of a second more makes it a fifth shorter, and in another it "
    "was 16 % shorter live.",
    "live-length": "The jobs are those of the simulation. What a reshape costs is that of a small training, in real "
    "seconds: the case study's 242 s would come to 3.6 s at this scale.",
    "live-chance": "So few draws do not tell it from none: ± is the deviation of one draw.",
    "live-drawn": "Three draws; arrivals, types and sizes of the paper's one run are not published.",
    "live-starts": "Each job imports and starts on the cores that train, in seconds that are not scaled: at a scale of "
    "0.1 one weighs as ten do.",
    "live-moves": "A move and a start take real seconds, which are not scaled: at a scale of 0.1 one weighs as ten do. "
    "Every model was the same small training, so that none converged sooner than another; and the draws differ by as "
    "much as there is to gain.",
    "live-alike": "Every model was the same small training, so that all losses fell alike and there was little to take "
    "from one job for another.",
    "live-short": "A job takes a minute or two here, and in that the method costs what it costs jobs of hours: a "
    "sidecar reports seconds after the decision, and each task of a job waits for that.",
}  # fmt: skip
"""Reasons of live figures: none says what the simulation says, which misses for reasons of its own."""

_RULES: Sequence[tuple[str, str, str, str]] = (  # experiment, policy, measure, reason
    ("case-study", "*", "*", "cost"),
    ("elastic-*", "*", "overhead_share", "length"),
    ("elastic-*", "*", "adds", "length"),
    ("elastic-*", "*", "pending*", "drawn"),
    ("elastic-w[34]*", "*", "*", "moves"),
    ("elastic-*-measured", "*", "*", "speeds"),
    ("elastic-w2", "*", "*", "few"),
    ("elastic-*", "*", "*", "baseline"),
    ("specon-fixed", "*", "*", "alone"),
    ("specon-parameters", "*", "*", "equal"),
    ("specon-random-*", "*", "*", "competition"),
    ("specon-fitted-*", "*", "*", "work"),
    ("flowcon-fixed", "*", "mean_jct*", "curves"),
    ("flowcon-*", "*", "worst", "short"),
    ("flowcon-*-5", "flowcon*", "mean_jct_by_kind_s", "short"),
    ("flowcon-*", "*", "jobs_*", "count"),
    ("flowcon-*", "*", "makespan_ratio", "conserved"),
    ("flowcon-random-*", "*", "*", "recorded"),
    ("flowcon-fitted-*", "*", "*", "work"),
    ("flowcon-parameters", "*", "mean_jct*", "interval"),
    ("flowcon-*", "*", "*", "conserved"),
    ("deadline-*", "*", "mean_jct_ratio", "order"),
    ("deadline-*", "*", "*", "load"),
)


_LIVE_RULES: Sequence[tuple[str, str, str, str]] = (
    ("elastic-*", "*", "overhead_share", "live-length"),
    ("elastic-*", "*", "adds", "live-length"),
    ("elastic-*", "*", "pending*", "live-drawn"),
    ("elastic-*", "*", "*", "live-costs"),
    ("specon-*", "ds", "*", "live-starts"),
    ("specon-*", "*", "*", "live-moves"),
    ("flowcon-*", "*", "makespan_s", "live-starts"),
    ("flowcon-*", "na", "*", "live-starts"),
    ("flowcon-*", "*", "*", "live-alike"),
    ("deadline-*", "*", "*", "live-short"),
)


def place(experiment: str) -> str:
    """Return an experiment's place in its paper."""
    where = _PLACES[original(experiment)]
    if experiment.endswith("-measured"):
        return f"{where}, on measured speeds of others"
    if "-random-" in experiment:
        return f"{where}, on recorded trainings of the zoo"
    return f"{where}, on work and losses fitted to the paper" if "-fitted-" in experiment else where


def of(experiment: str, figure: PublishedFigure) -> str | None:
    """Return the name of the reason why a figure misses the paper's, a key of `TEXTS`; None if there is none."""
    return _first_that_fits(_RULES, experiment, figure)


def of_live(experiment: str, figure: PublishedFigure, verdict: str = "") -> str | None:
    """Return the name of the reason why a live figure misses the paper's, a key of `LIVE_TEXTS`.

    `verdict`: that on the figure; where few draws do not tell a gain from none, that is the reason.
    """
    return "live-chance" if verdict == verdicts.CHANCE else _first_that_fits(_LIVE_RULES, experiment, figure)


def _first_that_fits(
    rules: Sequence[tuple[str, str, str, str]], experiment: str, figure: PublishedFigure
) -> str | None:
    given = (experiment, figure.policy, figure.measure)
    for *patterns, name in rules:
        if all(fnmatchcase(value, pattern) for value, pattern in zip(given, patterns, strict=True)):
            return name
    return None
