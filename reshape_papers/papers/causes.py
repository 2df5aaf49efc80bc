"""Changes one input of an experiment whose figures miss its paper's, to show what the miss depends on.

`reshape paper all` runs each beside the experiment; docs/papers.md shows both. Called by it and by `page.py`.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import Profiles, Speed
from adaptive_scheduler.snapshot import ClusterSnapshot
from reshape_papers import loss_curves, sidecar_baselines
from reshape_papers.published_figures import PublishedFigure, published
from reshape_papers.workloads import build, printed_speeds, recorded_trainings, specon_workloads
from reshape_papers.workloads.recorded_trainings import STEP
from reshape_papers.workloads.sidecar_workloads import JOB_SETS, MEASURED, S_BY_POD, S_IN_PLACE, SMALL, batch_of
from simulator.scenario import Costs, CpuWork, PolicySetup, Submission, Workload

LIVE_SCALE = 0.015
LIVE_START_S = 4.4
LIVE_RESHAPE_S = 1.1
"""Means of W1's live runs (November 2026), live seconds: launch to first step, standstill for a reshape or move."""


def live_s(seconds: float) -> float:
    """Return what seconds of W1's live runs are at their scale, seconds of the paper."""
    return seconds / LIVE_SCALE


Change = Callable[[Workload], Workload]


@dataclass(frozen=True, slots=True)
class Cause:
    """One experiment with one input changed, and which of its figures to compare."""

    name: str
    experiment: str
    changed: str
    change: Change
    shown: tuple[tuple[str, str], ...]  # policies and measures
    against: str | None = None  # if given, only figures against this baseline

    @property
    def figures(self) -> list[PublishedFigure]:
        """Return the published figures of the experiment to compare."""
        found = (f for f in published(self.experiment) if (f.policy, f.measure) in self.shown)
        return [figure for figure in found if self.against in (None, figure.against)]

    def draw(self, seed: int) -> Workload:
        """Build the changed workload of one seed, under the name of this cause."""
        return replace(self.change(build(self.experiment, seed)), name=self.name)


def _one_epoch(workload: Workload) -> Workload:
    """Halve the jobs on ImageNet, which train two epochs here and one in the paper."""
    jobs = (replace(j, iterations=j.iterations / (1 if j.type == SMALL else 2)) for j in workload.jobs)
    return replace(workload, jobs=tuple(jobs))


def _of_table_iv(workload: Workload) -> Workload:
    """Make one epoch take as long as Table IV says for its type 0: scale all jobs on ImageNet by the same factor."""
    known = workload.policy_setups[0].profiles
    longer = {node.gpu_type: _alone_s(node.gpu_type) / known.speeds["0", node.gpu_type][1].seconds
              for node in workload.nodes}  # fmt: skip
    return _one_epoch(_with_speeds(workload, lambda _, gpu_type, n, speed: speed.seconds * longer[gpu_type]))


def _alone_s(gpu_type: str) -> float:
    return printed_speeds.TABLE_IV[gpu_type][1]


def _default_read_as(workload: Workload, **reading: bool) -> Workload:
    """Let the default scheduler use another reading of the paper."""
    first, *others = workload.policy_setups
    plan = sidecar_baselines.default(workload.jobs, **reading)
    return replace(workload, policy_setups=(replace(first, plan=plan), *others))


def _blind_to_restarts(workload: Workload) -> Workload:
    """Let the termination approach grow jobs without accounting for the time of a restart."""
    plan = partial(sidecar_baselines.termination, sees_restarts=False)
    setups = (replace(s, plan=plan) if s.name == "termination" else s for s in workload.policy_setups)
    return replace(workload, policy_setups=tuple(setups))


def _as_in_figure_1(workload: Workload) -> Workload:
    """Let stopping a job and starting it again take what Figure 1 shows of it, in place and by a new pod."""
    return replace(workload, policy_setups=tuple(map(_costs_of_figure_1, workload.policy_setups)))


def _costs_of_figure_1(setup: PolicySetup) -> PolicySetup:
    shown = S_BY_POD if setup.name == "termination" else S_IN_PLACE
    return replace(setup, costs=replace(setup.costs, stop=shown.stop, shrunk=shown.shrunk, grown=shown.grown))


def _as_live(workload: Workload) -> Workload:
    """Let starts and reshapes take what they took in W1's live runs, at their scale."""

    def as_live(costs: Costs) -> Costs:
        changed_s = live_s(LIVE_RESHAPE_S) - costs.stop
        return replace(costs, launch=live_s(LIVE_START_S) - costs.begin, shrunk=changed_s, grown=changed_s)

    setups = (replace(setup, costs=as_live(setup.costs)) for setup in workload.policy_setups)
    return replace(workload, policy_setups=tuple(setups))


def _on_measured_speeds(workload: Workload) -> Workload:
    """Give the jobs the speeds of the same experiment on measured speeds."""
    profiles = build(f"{workload.name}{MEASURED}", workload.seed).policy_setups[0].profiles
    return _with_profiles(workload, profiles)


def _on_8(workload: Workload, up: float) -> Workload:
    """Make jobs on ImageNet `up` times as fast on 8 GPUs as on one."""
    known = workload.policy_setups[0].profiles.speeds
    return _with_speeds(
        workload, lambda kind, gpu_type, n, speed: known[kind, gpu_type][1].seconds / up if n == 8 else speed.seconds
    )


def _by_batch(workload: Workload) -> Workload:
    """Take all speeds on several GPUs from the law, including those on 2 and 4, by the batch of each type."""
    known = workload.policy_setups[0].profiles.speeds
    batches = [batch_of(named) for named in JOB_SETS["one"]]
    return _with_speeds(
        workload,
        lambda kind, gpu_type, n, speed: (
            known[kind, gpu_type][1].seconds / printed_speeds.by_law(n, batches[int(kind)])
        ),
    )


def _with_speeds(workload: Workload, seconds: Callable[[str, str, int, Speed], float]) -> Workload:
    """Change the seconds per iteration of each job type on ImageNet, by type, GPU type and number of GPUs."""
    known = workload.policy_setups[0].profiles
    speeds = {
        (kind, gpu_type): of
        if kind == SMALL
        else {n: replace(speed, seconds=seconds(kind, gpu_type, n, speed)) for n, speed in of.items()}
        for (kind, gpu_type), of in known.speeds.items()
    }
    return _with_profiles(workload, Profiles(speeds, overhead_rows=known.overhead_rows))


def _with_profiles(workload: Workload, profiles: Profiles) -> Workload:
    setups = (replace(setup, profiles=profiles) for setup in workload.policy_setups)
    return replace(workload, policy_setups=tuple(setups))


def _without_moves(workload: Workload) -> Workload:
    """Keep each job of `sidecar` on the node on which it began, as both baselines do."""
    *others, ours = workload.policy_setups
    settings = replace(ours.settings, moves=False)
    staying = replace(ours, plan=partial(decide, settings=settings), settings=settings)
    return replace(workload, policy_setups=(*others, staying))


def _light(workload: Workload) -> Workload:
    """Stretch the arrivals to a third of the load, and make pods on one node lose more speed."""
    jobs = tuple(replace(job, arrival_s=3 * job.arrival_s) for job in workload.jobs)
    return replace(workload, jobs=jobs, contention=0.25)


def _uneven(workload: Workload, median_s: float, sigma: float) -> Workload:
    """Draw the work of each job, in core-seconds, from a log-normal distribution."""
    rng = random.Random(1000 + workload.seed)
    return _with_work(workload, lambda work: replace(work, core_s=median_s * rng.lognormvariate(0.0, sigma)))


def _fitted_work(workload: Workload) -> Workload:
    """Give each model the work that was fitted to the paper's times; its recorded loss stays."""
    fitted = build(workload.name.replace("-random-", "-fitted-"), workload.seed)
    core_s = {job.cpu.kind: job.cpu.core_s for job in fitted.jobs if job.cpu is not None}
    return _with_work(workload, lambda work: replace(work, core_s=core_s[work.kind]))


def _recorded_losses(workload: Workload) -> Workload:
    return _with_work(workload, lambda work: replace(work, curve=recorded_trainings.loss(work.kind)))


def _even_curves(workload: Workload) -> Workload:
    """Let every loss fall as evenly as the modelled one of MNIST: 30 % after a fifth of the work."""
    curve = loss_curves.head_and_tail(1.0, 0.0, loss_curves.MODELS["MNIST"].fallen)
    return _with_work(workload, lambda work: replace(work, curve=curve))


def _two_curves(workload: Workload) -> Workload:
    """Give MNIST on PyTorch and on TensorFlow their own curves; the shares were searched for, in steps of 0.01."""
    model = loss_curves.MODELS["MNIST"]
    curves = {
        kind: loss_curves.head_and_tail(model.first, model.last, fallen) for kind, fallen in FALLEN_OF_MNIST.items()
    }
    return _with_work(workload, lambda work: replace(work, curve=curves.get(work.kind, work.curve)))


def _equal_work(workload: Workload) -> Workload:
    return _with_work(workload, lambda work: replace(work, core_s=150.0))


def _mean_work(workload: Workload) -> Workload:
    mean_s = statistics.fmean(job.cpu.core_s for job in workload.jobs if job.cpu is not None)
    return _with_work(workload, lambda work: replace(work, core_s=mean_s))


def _noisy(workload: Workload, share: float) -> Workload:
    """Let each value of a loss deviate by this share of its whole fall, normally distributed."""

    def with_noise(work: CpuWork) -> CpuWork:
        assert work.curve is not None  # all jobs of FlowCon have one
        smooth = work.curve
        sigma = share * (work.curve(0.0) - work.curve(1.0))

        def curve(done: float) -> float:
            return smooth(done) + random.Random(f"{workload.seed} {work.kind} {done:.9f}").gauss(0.0, sigma)

        return replace(work, curve=curve)

    return _with_work(workload, with_noise)


def _beside_each_other(workload: Workload, contention: float) -> Workload:
    """Let each further job on the node cost this share of the speed; the work stays."""
    return replace(workload, contention=contention)


def _contended(workload: Workload, contention: float) -> Workload:
    return specon_workloads.contended(workload, contention)


def _asks_cluster_wide(workload: Workload) -> Workload:
    """Let `specon` count |PC| + |WC| > 1 over all nodes, as the line without an index can be read (S7)."""
    return replace(workload, policy_setups=tuple(map(_cluster_wide, workload.policy_setups)))


def _cluster_wide(setup: PolicySetup) -> PolicySetup:
    given = setup.settings
    if given.specon.request_beside != "progressing":
        return setup
    anybody = replace(given, specon=replace(given.specon, request_beside="anybody"))

    def plan(snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        unconverged = sum(job.growth.category != "CC" for jobs in snapshot.on_cpu.values() for job in jobs)
        return decide(snapshot, now, anybody if unconverged > 1 else given)

    return replace(setup, plan=plan)


def _with_work(workload: Workload, change: Callable[[CpuWork], CpuWork]) -> Workload:
    return replace(workload, jobs=tuple(_trains(job, change) for job in workload.jobs))


def _trains(job: Submission, change: Callable[[CpuWork], CpuWork]) -> Submission:
    assert job.cpu is not None  # the experiments on CPU nodes have no other jobs
    work = change(job.cpu)
    return replace(job, cpu=work, iterations=work.core_s / STEP)


_GAINS = (("sidecar", "makespan_ratio"), ("sidecar", "mean_jct_ratio"))
_COSTS = (("termination", "overhead_share"), ("sidecar-printed", "overhead_share"), ("termination", "adds"),
          ("sidecar-printed", "adds"))  # fmt: skip
_GROWS = (("termination", "overhead_share"), ("termination", "adds"))
_PENDING = ("default", "pending_at_last_arrival")
_MOVES = tuple((policy, measure) for policy in ("specon", "specon-makespan")
               for measure in ("makespan_ratio", "mean_jct_ratio", "best"))  # fmt: skip
_SPECON_AS_PRINTED = tuple(pair for pair in _MOVES if pair[0] == "specon")
_BASELINE = (("ds", "makespan_s"), ("ds", "mean_jct_s"))
_TABLE_III = tuple((f"specon{mode}-0.01-30s", measure) for mode in ("", "-makespan")
                   for measure in ("makespan_ratio", "mean_jct_ratio", "best", "jobs_faster"))  # fmt: skip
_SINGLE = tuple(("flowcon", measure) for measure in ("mean_jct_ratio", "jobs_faster", "best", "worst"))
SETTINGS_OF_TABLE_2 = ("10%-20s", "10%-30s", "10%-40s", "10%-50s", "10%-60s", "15%-20s")
_TABLE_2 = tuple((f"flowcon-{setting}", "mean_jct_by_kind_s") for setting in SETTINGS_OF_TABLE_2)
FALLEN_OF_MNIST = {"MNIST(P)": 0.79, "MNIST(T)": 0.90}  # share of the fall after a fifth of the work
EQUAL_WORK = "every job has the mean work of its draw"
FITTED_WORK = "the recorded losses, but works fitted to the paper's times"

CAUSES: tuple[Cause, ...] = (
    Cause("case-study-figure-1", "case-study",
          "a reshaping costs what Figure 1 shows: down 204 s with termination and 27 s, up 242 s and 37 s",
          _as_in_figure_1, tuple((policy, measure) for policy in ("termination", "sidecar")
                                 for measure in ("makespan_s", "mean_jct_s"))),
    Cause("w1-measured", "elastic-w1", "speeds on several GPUs that others measured", _on_measured_speeds,
          (*_GAINS, _PENDING)),
    Cause("w1-8-as-2", "elastic-w1", "on 8 GPUs as fast as on 2: 1.7", partial(_on_8, up=1.7), (*_GAINS, _PENDING)),
    Cause("w1-8-as-4", "elastic-w1", "on 8 GPUs as fast as on 4: 2.4", partial(_on_8, up=2.4), (*_GAINS, _PENDING)),
    Cause("w1-by-batch", "elastic-w1", "speeds on 2 and 4 GPUs, too, are what the law says of each batch", _by_batch,
          (*_GAINS, _PENDING)),
    Cause("w1-smallest-first", "elastic-w1", "the default scheduler starts small requests first",
          partial(_default_read_as, smallest_first=True), (*_GAINS, _PENDING)),
    Cause("w1-in-order", "elastic-w1", "the default scheduler lets no job pass another",
          partial(_default_read_as, passes=False), (*_GAINS, _PENDING)),
    Cause("w1-one-epoch", "elastic-w1", "one epoch a job, as in the paper", _one_epoch, (*_GAINS, *_COSTS)),
    Cause("w1-as-live", "elastic-w1", f"a start takes {live_s(LIVE_START_S):.0f} s and a reshape "
          f"{live_s(LIVE_RESHAPE_S):.0f} s, as live at its scale", _as_live,
          (*_GAINS, ("planner", "makespan_ratio"), ("planner", "mean_jct_ratio")), "default"),
    *(Cause(f"{name}-table-iv", f"elastic-{name}", "one epoch a job, at the seconds on one GPU of Table IV",
            _of_table_iv, (*_GAINS, *_COSTS)) for name in ("w1", "w2")),
    *(Cause(f"{name}-blind", experiment, "termination does not count what a restart takes", _blind_to_restarts,
            (*_GAINS, *_GROWS))
      for name, experiment in (("w1", "elastic-w1"), ("w2", "elastic-w2"), ("w2-measured", "elastic-w2-measured"))),
    Cause("w3-without-moves", "elastic-w3", "no job moves to another node", _without_moves, _GAINS),
    Cause("specon-fixed-uneven", "specon-fixed", "the 20 VAEs differ in length: around 201 s, log-normal, σ 0.3",
          partial(_uneven, median_s=201.0, sigma=0.3), _MOVES),
    Cause("specon-parameters-uneven", "specon-parameters", "the 20 VAEs differ in length: σ 0.4",
          partial(_uneven, median_s=215.0, sigma=0.4), _TABLE_III),
    Cause("specon-parameters-recorded", "specon-parameters", "the recorded loss of VAE(P)", _recorded_losses,
          tuple(pair for pair in _TABLE_III if pair[1].endswith("_ratio"))),
    *(Cause(f"specon-{count}-fitted-work", f"specon-random-{count}", FITTED_WORK, _fitted_work, _MOVES)
      for count in (20, 30, 50)),
    *(Cause(f"{name}-contention-{lost:.2f}", name, f"each further job on a node costs {100 * lost:g} % of the speed",
            partial(_contended, contention=lost), (*_BASELINE, *_MOVES))
      for name in ("specon-fixed", "specon-random-20", "specon-random-30", "specon-random-50")
      for lost in (0.0, 0.10, 0.15, 0.30)),
    Cause("specon-fixed-cluster-wide", "specon-fixed", "PC and WC, more than one together, counted over all nodes (S7)",
          _asks_cluster_wide, (*_SPECON_AS_PRINTED, ("specon", "jobs_faster"), ("specon", "jobs_slower"))),
    Cause("specon-fitted-equal-work", "specon-fitted-30", EQUAL_WORK, _mean_work, _MOVES),
    Cause("flowcon-fixed-recorded", "flowcon-fixed", "the recorded losses", _recorded_losses,
          (("flowcon", "mean_jct_ratio"), ("flowcon", "mean_jct_by_kind_s"))),
    Cause("flowcon-fixed-two-curves", "flowcon-fixed",
          "a curve for MNIST(P) and one for MNIST(T): 79 and 90 % of the fall after a fifth, not 30 % for both",
          _two_curves, (("flowcon", "mean_jct_ratio"), ("flowcon", "mean_jct_by_kind_s"))),
    Cause("flowcon-noise", "flowcon-parameters", "each value of a loss deviates by 2 % of its fall (σ)",
          partial(_noisy, share=0.02), _TABLE_2),
    *(Cause(f"flowcon-contention-{lost:.2f}", "flowcon-random-10",
            f"each further job on the node costs {100 * lost:g} % of the speed",
            partial(_beside_each_other, contention=lost), (("flowcon", "makespan_ratio"), *_SINGLE))
      for lost in (0.08, 0.15)),
    Cause("flowcon-fitted-equal-work", "flowcon-fitted-10", EQUAL_WORK, _mean_work, _SINGLE),
    Cause("flowcon-fitted-work", "flowcon-random-10", FITTED_WORK, _fitted_work, _SINGLE),
    Cause("flowcon-equal-work", "flowcon-random-10", "every job has 150 core-seconds", _equal_work, _SINGLE),
    Cause("flowcon-even-curves", "flowcon-random-10", "every loss falls as evenly as the fitted one of MNIST",
          _even_curves, _SINGLE),
    *(Cause(f"deadline-{placement}-light", f"deadline-{placement}",
            "a third of the load, each further job on a node costs 25 % of the speed", _light,
            ((placement, "art_s"), (f"{placement}+deadlines", "mean_jct_ratio"), ("deadline", "mean_jct_ratio")))
      for placement in ("gang", "binpack", "task-topology")),
)  # fmt: skip
