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
    "length": "Our jobs train two epochs of ImageNet; the paper's train one. At the seconds per iteration that others "
    "measured on one GPU, one epoch does not keep 16 GPUs busy until 20,000 s, as the paper's default scheduler does. "
    "Longer jobs make each reshape a smaller share of their time, and termination has fewer of them. With one epoch, "
    "termination's overhead is two thirds of the paper's, but then little makespan is left to gain; at the seconds of "
    "Table IV, three times as long, it is less than a tenth. No single length fits the paper's own overheads and "
    "makespans: termination's 46 additions at the case study's 242 s each are 11,132 s, and that is 29.3 % only of "
    "jobs of 950 s on average. A termination that ignores its restarts has three quarters of W2's overhead, and nearly "
    "all of it on measured speeds. No length that we tried gives the 16 additions of the paper's framework.",
    "baseline": "A scheduler can gain only what its baseline wastes. The default scheduler wastes what jobs do not "
    "gain from 8 GPUs. With the speeds of Figure 2 the makespan ratio to it is the paper's; if 8 GPUs were only as "
    "fast as 2 the gain would be a little larger, and if they were as fast as 4 a little smaller. Starting small "
    "requests first, another way to read the paper, changes little, and gives the paper's pending jobs; if no job may "
    "pass another, the gain is larger than the paper's. Termination wastes its restarts, of which the paper has more "
    "(*length*): with one epoch per job the mean ratio to it is the paper's, but the makespan ratio is not; with "
    "speeds that also depend on the batch on 2 and 4 GPUs, the makespan ratio nearly is.",
    "speeds": "On several GPUs these jobs have the speeds that others measured. They gain up to 5.6 times from 8 GPUs, "
    "so the default scheduler wastes less. The same draws with the speeds of Figure 2 are `elastic-w1` and "
    "`elastic-w2`. The gain over termination is what its restarts cost (*length*).",
    "moves": "A job that a baseline starts on a K80 stays there, seven times as slow as on a V100 at the seconds per "
    "iteration that others measured; ours moves to a V100 that becomes idle. Without moves the makespan ratio to the "
    "default scheduler is close to the paper's.",
    "drawn": "The paper does not publish the arrivals, types and sizes of its one run. We print the mean of several "
    "draws, and this figure differs between draws by as much as it misses the paper's.",
    "few": "There are only 20 jobs. At these speeds they do not fill the GPUs, so there is less to gain. With epochs "
    "as long as at the seconds of Table IV, the makespan gains more over the default scheduler than the paper's. The "
    "gain over termination is what its restarts cost (*length*).",
    "cost": "The fit to the case study uses one number for all starts and stops, and gives the paper's makespans. With "
    "the seconds of Figure 1 instead, termination's makespan is 5 % longer than the paper's: the paper's own figures "
    "for one reshape and for whole runs differ by as much.",
    "alone": "Equal jobs that arrive evenly are hardly ever two on a node, and the paper's rule asks for a move only "
    "beside more than one job that still progresses (S7), so it never asks. The printed line names no worker; read as "
    "a count over all nodes, jobs move, but four gain, five lose, and the mean rises. Nor could any rule gain as much: "
    "one job after another on each node, the best for equal jobs of 215 s, has a mean of 245 s, and the paper has "
    "234.7 s. If each further job costs 30 % of the speed, a VAE has 204 s of work, the paper's mean is possible and "
    "DS has the paper's makespan within 1 %, but still no job asks. With jobs of unequal length, nodes become uneven, "
    "and moves gain part of what the paper's gain.",
    "equal": "20 jobs of equal length, five on each node, end at nearly the same time: if they lose no speed to each "
    "other, the default scheduler is within 2 % of the least possible makespan. With jobs of unequal length the "
    "makespan gains half of the paper's or more, the mean a fifth.",
    "recorded": "Work and losses are those of small models on small data, recorded on one machine, not the paper's. "
    "The ratio of their lengths and the draw of models and arrivals differ, too.",
    "competition": f"Each job loses {100 * measured_contention.per_job():.2g} % of its speed to each further job on "
    "its node, as trainings of the zoo did on one core here; the paper does not say what its jobs lost. With 10 % the "
    "50 jobs gain two thirds or more of the paper's makespan and mean, with 15 % all or more; with 15 % the 30 jobs "
    "gain its makespan; with 30 % the 20 jobs gain about two thirds of it or more. The 20 and the 30 gain nearly half "
    "of its mean or more, though DS then takes two to three times as long as the paper's. Besides, the recorded "
    "trainings are nearly equal in length, 6 to 14 s of CPU time (we chose how many epochs each has), so nodes stay "
    "even. With the unequal works that were fitted to the paper's times, the same recorded losses gain most of what "
    "`specon-fitted-20`, `-30` and `-50` gain.",
    "work": "The paper does not publish the work and the curves of these models. We invented ours so that the default "
    "scheduler takes about as long (1.4 times as long with SpeCon's 30 jobs). Moves gain by evening out unequal nodes, "
    "and how unequal these are is drawn: with jobs of equal work the 30 gain a seventh to a half as much. Of ten such "
    "jobs under FlowCon the best gains less, and the worst loses half as much.",
    "conserved": "In the model a node does the same work per second whatever the limits, so one job gains what another "
    "loses. `flowcon-contention` has three jobs that each lose 8 % of their speed to each further job; if the ten lose "
    "15 %, their makespan falls as the paper's does.",
    "curves": "Here MNIST has one curve on both frameworks. With a curve for each (found by search, as neither is "
    "published) both times come close to the paper's, MNIST(P) within a tenth.",
    "short": "The worst job is one whose loss is flat early (a GRU, a VAE): it is limited from then on and pays for "
    "all others, and the shorter it is, the more it pays. If every loss fell as evenly as the fitted one of MNIST, the "
    "worst job would lose a tenth of its time; among jobs of equal work it loses less, too. With the recorded losses "
    "and works fitted to the paper's times, where the flat ones are the shortest, even the mean rises. Jobs that lose "
    "15 % of their speed to each further job lose less to limits, too: the worst loses 0.14. The paper does not "
    "publish its lengths and curves.",
    "interval": "The curves have no noise. If each value deviates by 2 % of the fall, the times are 3 to 5 s longer, "
    "closer to the paper's, and single draws differ by 5 s; the paper's own figures for one setting (10 %, 20 s) "
    "differ by 7 points between its two tables.",
    "count": "One job gains what another loses (*conserved*), and a job that no limit touches does neither. If each "
    "further job costs 8 % of the speed, five and a half of ten end earlier; with 15 %, six and a half do.",
    "cold": "Each start is a new process that imports today's PyTorch or TensorFlow, which is most of its time. In the "
    "product a waiting interpreter has done these imports already; that is not counted here. The machine had nothing "
    "else to do. The paper does not say how its trainings start again.",
    "order": "At our load of nine tenths both nodes are full, and what a deadline brings forward delays another job: 1 "
    "to 2 % are less than draws differ by. At a third of that load, and with more speed lost to other pods on the "
    "node, `deadline` is 1 to 8 % below each placement alone; the paper's method as printed is not.",
    "load": "In the paper a node's load slows all of its pods. At our load of nine tenths both nodes are full whatever "
    "the placement, so binpack's response time is within 2 % of the others'. At a third of that load, and with more "
    "speed lost to other pods on the node, it is the highest.",
}

LIVE_TEXTS: Mapping[str, str] = {
    "live-costs": "The jobs, their speeds and what the default scheduler wastes are those of the simulation. Other "
    f"programs used the same cores, so a start took {causes.LIVE_START_S:g} s on average and a reshape "
    f"{causes.LIVE_RESHAPE_S:g} s. At this scale these are {causes.live_s(causes.LIVE_START_S):.0f} and "
    f"{causes.live_s(causes.LIVE_RESHAPE_S):.0f} s of the paper's; the simulation counts 108 and 37 s. With the live "
    "costs the simulation gives the live makespans within 5 %. The mean completion time under the default scheduler "
    "reacts to small differences: in one draw a start that takes a tenth of a second more makes it a fifth shorter, "
    "and in another it was 16 % shorter live.",
    "live-length": "The jobs are those of the simulation. A reshape costs what it costs a small training, in real "
    "seconds: the case study's 242 s would be 3.6 s at this scale.",
    "live-chance": "So few draws cannot tell it from none: ± is the standard deviation of one draw.",
    "live-drawn": "Three draws; the paper does not publish the arrivals, types and sizes of its one run.",
    "live-starts": "Each job imports and starts on the cores that train, in seconds that are not scaled: at a scale of "
    "0.1 one start counts as much as ten.",
    "live-moves": "A move and a start take real seconds, which are not scaled: at a scale of 0.1 one counts as much as "
    "ten. All models were the same small training, so none converged sooner than another, and the draws differ by as "
    "much as there is to gain.",
    "live-alike": "All models were the same small training, so all losses fell alike, and there was little to take "
    "from one job for another.",
    "live-short": "A job takes a minute or two here, and in that time the method costs what it costs jobs that take "
    "hours: a sidecar reports seconds after the decision, and each task of a job waits for that.",
}
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


def reason_of(experiment: str, figure: PublishedFigure) -> str | None:
    """Return the name of the reason why a figure misses the paper's, a key of `TEXTS`; None if there is none."""
    return _first_that_fits(_RULES, experiment, figure)


def live_reason_of(experiment: str, figure: PublishedFigure, verdict: str = "") -> str | None:
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
