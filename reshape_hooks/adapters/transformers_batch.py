"""Keeps the batches of Hugging Face's Trainer, whose size depends on the number of GPUs, as at the job's first start.

Promises: on any number of GPUs, each step trains on the same samples, and its gradient is the same sum up to rounding;
no GPU takes more samples at once than at the first start. The Trainer's own loop sees the same DataLoader, so that
steps, epochs and learning rates are the same. Left alone: what is not the sum of the GPUs' parts. Called by
`transformers_trainer`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from reshape_hooks import plain, seeds
from reshape_hooks.adapters import parts
from reshape_hooks.adapters.ranks import Ranks
from reshape_hooks.adapters.session import LeftAlone

WRAPPED = (
    "get_train_dataloader",
    "training_step",
    "compute_loss",
    "_get_num_items_in_batch",
    "get_total_train_batch_size",
)
NO_FASTER = (
    "reshape: the loss of a batch does not follow from the losses of its parts, so this training goes no faster on "
    "more GPUs than it began with"
)
SAYS_AT = 64  # batches after which the kind of loss is reported even if unknown


class First(NamedTuple):
    """The Trainer's setup at the job's first start."""

    processes: int
    gpus: int  # per process
    batch: int  # samples per GPU
    accumulation: int

    @classmethod
    def from_args(cls, args: Any) -> First:
        return cls(
            args.world_size, max(1, args.n_gpu), args.per_device_train_batch_size, args.gradient_accumulation_steps
        )


class Run(NamedTuple):
    """A forward and backward pass, and the weight of each GPU's loss in it."""

    model: Any
    inputs: Any
    items: Any
    weights: list[float]


def refuse(trainer: Any, first: First, together: Ranks) -> None:
    """Raise LeftAlone if a training with this first start is not the same on another number of GPUs."""
    args, config = trainer.args, trainer.args.accelerator_config
    if args.world_size > 1:
        if together.size != together.local_size:
            raise LeftAlone("its processes are in several pods")
        if config.split_batches or config.dispatch_batches or not config.even_batches:
            raise LeftAlone("accelerator_config says how its processes share a batch")
        ours = type(trainer).get_train_dataloader.__module__ == "transformers.trainer"
        if not ours or getattr(args, "train_sampling_strategy", "random") == "batch_rebalance":
            raise LeftAlone("its processes do not share batches as the Trainer's own DataLoader does")
    if first.processes * first.gpus == 1:
        return
    if _keeps_statistics(trainer.model):
        raise LeftAlone("each GPU keeps statistics of its part of a batch (BatchNorm)")
    if not args.average_tokens_across_devices and _counts_items(trainer):
        raise LeftAlone("each GPU divides by its own count of tokens (average_tokens_across_devices)")
    if first.gpus > 1 and _of_all_outputs(trainer):
        raise LeftAlone("its loss is computed from the outputs of all GPUs together; under torchrun it is not")


class KeptBatch:
    """Makes the Trainer train on batches as at the `first` start, while entered. `ranks`: its processes."""

    def __init__(self, trainer: Any, first: First, ranks: Ranks) -> None:
        self.trainer, self.first, self.ranks = trainer, first, ranks
        args = trainer.args
        self.now = First.from_args(args)
        self.share = parts.Share(first.processes, self.now.processes, ranks.rank)
        args.per_device_train_batch_size, args.gradient_accumulation_steps = first.batch, first.accumulation
        trainer._train_batch_size = first.batch * first.gpus
        if first.processes * first.gpus == 1:
            args.average_tokens_across_devices = True  # which is the same there
        self.theirs = {name: getattr(trainer, name) for name in WRAPPED}
        self.weights: list[float] | None = None  # of the losses in the current pass
        self.kind_of_loss = parts.KindOfLoss()

    def __enter__(self) -> KeptBatch:
        ours: dict[str, Any] = {}
        if self.first[:2] != self.now[:2]:
            ours = {name: getattr(self, name) for name in WRAPPED}
        elif self.now.processes > 1:
            ours = {WRAPPED[0]: self.get_train_dataloader}
        vars(self.trainer).update(ours)
        return self

    def __exit__(self, *_error: object) -> None:
        for name in WRAPPED:
            vars(self.trainer).pop(name, None)

    # Replacements of the Trainer's methods

    def get_total_train_batch_size(self, _args: Any) -> int:
        return self.first.processes * self.first.gpus * self.first.batch * self.first.accumulation

    def get_train_dataloader(self) -> Any:
        args = self.trainer.args
        were, args._n_gpu = args._n_gpu, self.first.gpus  # some samplers query its batch size
        try:
            loader = self.theirs["get_train_dataloader"]()
        finally:
            args._n_gpu = were
        if self.first.processes == self.now.processes == 1:
            return loader
        from accelerate.data_loader import BatchSamplerShard

        def shard(batches: Any, part: int) -> Any:
            return BatchSamplerShard(batches, self.first.processes, part) if self.first.processes > 1 else batches

        inner = getattr(loader, "base_dataloader", loader)
        batches = inner.batch_sampler
        alone = batches.batch_sampler if isinstance(batches, BatchSamplerShard) else batches
        # Bypass setattr, which DataLoader refuses after construction.
        inner.__dict__["batch_sampler"] = parts.BatchesOfParts(alone, self.share, shard, self.ranks.share)
        if self.first.processes != self.now.processes:
            inner.collate_fn = parts.Collated(inner.collate_fn, len(self.share.parts))
        return loader

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        if batch_samples and parts.REST in batch_samples[0]:
            batches = [one for batch in batch_samples for one in parts.all_parts(batch)]
            batch_samples = [self._piece(batch)[0] for batch in batches]
        return self.theirs["_get_num_items_in_batch"](batch_samples, device)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None, *args: Any) -> Any:
        many = self.first.processes > 1 or self.now.processes > 1
        runs = list((self._of_process if many else self._on_gpus)(model, inputs, num_items_in_batch))
        losses = []
        for left, run in zip(reversed(range(len(runs))), runs):
            wait = self.trainer.accelerator.no_sync(model=run.model) if left else contextlib.nullcontext()
            self.weights = run.weights
            try:
                with wait:
                    losses.append(self.theirs["training_step"](run.model, run.inputs, run.items, *args))
            finally:
                self.weights = None
        return sum(losses[1:], losses[0])

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        result = self.theirs["compute_loss"](model, inputs, *args, **kwargs)
        if self.weights is None:  # for an evaluation
            return result
        loss, *outputs = result if isinstance(result, tuple) else (result,)
        losses, weights = loss.reshape(-1), self.weights
        if len(losses) == len(weights):
            loss = (losses * losses.new_tensor(weights)).sum()
        else:  # for the outputs of all GPUs
            loss = losses.mean() * sum(weights)
        return (loss, *outputs) if outputs else loss

    # The inputs of each pass

    def _of_process(self, model: Any, inputs: Any, items: Any) -> Iterator[Run]:
        """Yield this process's parts, or its piece of one, for DDP, which averages over the processes."""
        weight = 1.0 if self._divided_by_items(items) else self.now.processes / self.first.processes
        batches = parts.all_parts(inputs)
        kind = self._kind_of_loss(batches[0], items) if self.now.processes > self.first.processes else ""
        for batch in batches:
            piece, of_it = self._piece(batch)
            if kind and parts.length(batch) >= self.share.piece[1]:  # else all that share it train on all of it
                yield Run(model, piece, items, [weight * (of_it if kind == "mean" else 1)])
            else:
                yield Run(model, batch, items, [weight / self.share.piece[1]])

    def _piece(self, batch: Any) -> tuple[Any, float]:
        """Return the samples of a batch that this process takes, and their share of it."""
        piece, takers = self.share.piece
        if takers == 1:
            return batch, 1.0
        count = parts.length(batch)
        begin, end = count * piece // takers, count * (piece + 1) // takers
        return parts.cut(batch, begin, end), (end - begin) / max(1, count)

    def _on_gpus(self, model: Any, inputs: Any, items: Any) -> Iterator[Run]:
        """Yield as many of the first start's parts at once as there are GPUs, or pieces of them, for DataParallel."""
        now, alone = self.now.gpus, self.trainer.model
        were = parts.sizes(parts.length(inputs), self.first.gpus)
        ends = [sum(were[: k + 1]) for k in range(len(were))]
        weight = 1 / len(were)
        if self._divided_by_items(items):
            weight *= self.first.gpus / now
        one = items[0] if now > 1 and getattr(items, "shape", None) else items
        kind = ""
        if now > self.first.gpus:
            kind = "mean" if _of_all_outputs(self.trainer) else self._kind_of_loss(inputs, one)
        if kind:
            together = len(set(were)) == 1  # all samples weigh the same
            for part, end, count in [(were[0], ends[-1], ends[-1])] if together else zip(were, ends, were):
                weights = [weight * size / part if kind == "mean" else weight for size in parts.sizes(count, now)]
                yield Run(model, parts.cut(inputs, end - count, end), items, weights)
            return
        at_once = min(now, self.first.gpus)
        for k in range(0, len(were), at_once):
            group = were[k : k + at_once]
            begin, end = ends[k] - were[k], ends[k + len(group) - 1]
            if now > 1 and parts.sizes(end - begin, now) == group:
                yield Run(model, parts.cut(inputs, begin, end), items, [weight] * len(group))
                continue
            for size, last in zip(group, ends[k:]):  # DataParallel would split them differently
                yield Run(alone, parts.cut(inputs, last - size, last), one, [weight])

    def _divided_by_items(self, items: Any) -> bool:
        """Return whether the Trainer sums up losses that are already divided by the step's number of items."""
        return items is not None and self.trainer.args.average_tokens_across_devices and _counts_items(self.trainer)

    def _kind_of_loss(self, inputs: Any, items: Any) -> str:
        """Return how its loss follows from those of pieces: "mean", "sum", or "" while they must not be split."""
        known = self.kind_of_loss
        if known.next_is_due():
            was = known.kind
            known.heard(self.ranks.gather(self._compared(inputs, items)))
            undecided = known.kind is None and known.batches == SAYS_AT
            if self.ranks.rank == 0 and (undecided or (known.kind == "" and was != "")):
                plain.warn(NO_FASTER)
        return known.kind or ""

    def _compared(self, inputs: Any, items: Any) -> str | None:
        """Compare a batch's loss with those of two maximally different halves, as `parts.adds_up` judges it."""
        count = parts.length(inputs)
        if _keeps_statistics(self.trainer.model):
            return ""
        if count < 2:
            return None
        import torch

        trainer, model = self.trainer, self.trainer.model
        streams, training = seeds.streams(devices=True), model.training
        more = {} if items is None else {"num_items_in_batch": items}
        ready = trainer._prepare_inputs(inputs)

        def loss(samples: list[int]) -> float:  # on copies: a model may modify its inputs
            return float(self.theirs["compute_loss"](model, parts.take_samples(ready, samples), **more).mean())

        model.eval()
        try:
            with _exactly(model), torch.no_grad(), torch.autocast(trainer.args.device.type, enabled=False):
                smaller, larger = parts.halves([loss([sample]) for sample in range(count)])
                whole, of_halves = loss([*range(count)]), (loss(smaller), loss(larger))
        except Exception:  # a loss may need two samples, a model may need autocast
            return ""
        finally:
            model.train(training)
            seeds.restore(streams)
        return parts.adds_up(whole, of_halves, (len(smaller), len(larger)), _rounding(model))


@contextlib.contextmanager
def _exactly(model: Any) -> Iterator[None]:
    """Let a model compute without the autocast that accelerate has wrapped around its `forward`."""
    own = vars(model)
    if "_original_forward" not in own or "forward" not in own:
        yield
        return
    theirs, own["forward"] = own["forward"], own["_original_forward"]
    try:
        yield
    finally:
        own["forward"] = theirs


def _rounding(model: Any) -> float:
    """Return a loss's relative rounding error: GPUs truncate factors to TF32."""
    import torch

    own = [one for one in model.parameters() if one.dtype.is_floating_point]
    eps = max((torch.finfo(one.dtype).eps for one in own), default=1.0)
    return max(2 * eps, 1e-3 if any(one.is_cuda for one in own) else 1e-5)


def _counts_items(trainer: Any) -> bool:
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func)


def _of_all_outputs(trainer: Any) -> bool:
    """Return whether the loss is computed outside the model, from the outputs of all GPUs of a process."""
    own = type(trainer).compute_loss.__module__ != "transformers.trainer"
    return own or trainer.compute_loss_func is not None or trainer.label_smoother is not None


def _keeps_statistics(model: Any) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(one, _BatchNorm) for one in model.modules())
