"""Functions that a search evaluates: train a configuration, refit a trial.

The networks of folds are the jobs of one trial, with a joint record. Importing this module loads
no backend, because a trainer is made in the caller's process and often used only in its workers.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq._random import trial_seed
from skuq.networks._keras_models import register_again, registered_in_main
from skuq.networks._member import FoldedMember, Member
from skuq.networks._plan import make_plan, without_names
from skuq.networks._space import SearchSpace
from skuq.search._records import CALIBRATION_ROWS, TrialBudget, TrialOutcome, TrialRecord
from skuq.tables._repeats import number_rows
from skuq.tables._splits import TrainingData
from skuq.training._job import TrainingJob, pad_splits
from skuq.training._network_checks import build_checked
from skuq.training._predict import predict_members
from skuq.training._recipe import TEMPERATURES, Recipe, stack_conflict
from skuq.training._train import plan_epochs, train_jointly

_LARGEST_STACK = 16  # folds trained by one program
# Largest difference between the mean row weights of stacked folds: a batch's loss is not divided
# by its weights, so that folds of other weights would train at other rates.
_LARGEST_SPREAD = 0.1
_LEAST_MIXED = 2  # networks of a trial whose mixture is predicted, however little time is left

#: A job with its data.
Job = tuple[TrainingJob, TrainingData]
#: Rows of ``data.x`` to train on and to validate on.
Fold = tuple[np.ndarray, np.ndarray]


def mean_score(
    head: Any, y: np.ndarray, raw: np.ndarray, weight: np.ndarray, *, calibrates: bool = False
) -> float:
    """Compute the score that a search minimises, as a weighted mean over rows, in float64.

    `calibrates` divides logits of classes by the temperature that is best for all rows.
    """
    y, raw, weight = (array.astype("float64") for array in (y, raw, weight))
    temperatures = TEMPERATURES if calibrates and head.classifies else (1.0,)
    return min(float(np.average(head.scores(y, raw / t), weights=weight)) for t in temperatures)


def _predict_in_time(networks: Sequence[Member], x: np.ndarray, deadline: float) -> np.ndarray:
    """Predict with the networks one by one, as many as the time until the deadline is enough for.

    Returns raw outputs (n_networks, n_samples, n_raw), of two networks at least.
    """
    raws: list[np.ndarray] = []
    for network in networks:
        started = time.monotonic()
        raws.append(predict_members([network], x, cache=False)[0])
        now = time.monotonic()
        if len(raws) >= _LEAST_MIXED and now + (now - started) > deadline:
            break
    return np.stack(raws)


def _stack_alike(of_trials: Sequence[Sequence[Job]]) -> tuple[list[Job], list[int]]:
    """Make stacks of the trials with a single network, where one program can train them.

    Returns the jobs, and the position of its trial for each of their networks.
    """
    stacks: list[tuple[list[TrainingJob], TrainingData, list[int]]] = []
    for trial, jobs in enumerate(of_trials):
        for job, data in jobs:
            for first, of_first, owners in stacks if len(jobs) == 1 else ():
                if of_first is data and can_stack(first[0], job):
                    first.append(job)
                    owners.append(trial)
                    break
            else:
                stacks.append(([job], data, [trial] * len(job.seeds)))
    joined = [
        (TrainingJob.joined([replace(job, stacked=True) for job in jobs]), data)
        if len(jobs) > 1
        else (jobs[0], data)
        for jobs, data, _ in stacks
    ]
    return joined, [trial for _, _, owners in stacks for trial in owners]


def can_stack(first: TrainingJob, other: TrainingJob) -> bool:
    """Tell whether two single networks can train as one stack.

    They must have the same network and head, which hyperparameters can change, too: the scale of
    an embedding is one. Networks that run through Keras are excluded: they would train one after
    the other inside one large program, which takes long to compile.
    """
    return (
        not (first.stacked or other.stacked)
        and first.head == other.head
        and without_names(first.network) == without_names(other.network)
        and make_plan(first.network) is not None
        and not first.recipe.keeps_jointly  # each trial keeps its own best epoch
        and not stack_conflict([first.recipe, other.recipe])
    )


@dataclass(eq=False, repr=False)
class MemberTrainer:
    """Train configurations: a callable ``(configuration, seed) -> Member``.

    It can be pickled, and is sent to each worker once.

    Parameters
    ----------
    space : SearchSpace
        Builds the network and makes the recipe of a configuration.
    data : TrainingData
        Rows to train and to validate on.
    head : object
        Maps raw outputs to a distribution: `n_raw` and ``loss(y, raw)``.
    epochs : int
        Number of epochs for configurations that do not set it.
    held_out : ndarray of shape (n_held_out, ...), optional
        Standardised inputs whose predictions are stored with each member, by default the
        validation rows. With `folds`, these predictions follow the out-of-fold predictions, and
        are the moments of the mixture of all networks of the trial.
    folds : sequence of pairs of ndarray, optional
        Rows of ``data.x`` to train on and to validate on. One network is trained for each pair,
        and together they are the configuration's `FoldedMember`. Every row is a validation row of
        exactly one fold; `data` has no validation rows of its own.
    timeout : float, optional
        Maximum seconds of a trial; of several together, their average. The clock is read about
        once a second during training, and not during compilation.
    max_epochs : int, optional
        Maximum number of epochs, also for configurations that set it.
    objective : callable, optional
        ``objective(member) -> float``, minimised by the search instead of `member.score`.
    calibrate : bool, default=True
        Whether ensembles of classes are calibrated on the validation rows, if these suffice.
        Trials then keep the epoch, and have the score, of their best temperature.
    """

    space: SearchSpace
    data: TrainingData
    head: Any
    epochs: int
    held_out: np.ndarray | None = None
    folds: Sequence[Fold] | None = None
    timeout: float | None = None
    max_epochs: int | None = None
    objective: Callable[[Any], float] | None = None
    calibrate: bool = True

    needs_backend = True  # a worker process should import the backend first
    takes_budget = True
    _cancelled = False

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        # Worker processes get the classes of a script or notebook by value, without running the
        # decorators that have registered them.
        return vars(self), registered_in_main()

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        fields, registered = state
        register_again(registered)
        vars(self).update(fields)

    def cancel(self) -> None:
        """Let trainings that run in other threads end at their next slice."""
        self._cancelled = True

    def __call__(
        self,
        configuration: Mapping[str, Any],
        seed: int,
        budget: TrialBudget | None = None,
        **changes: Any,
    ) -> Any:
        """Build and train the configuration's network, and predict the validation rows.

        Parameters
        ----------
        configuration : mapping
        seed : int
        budget : TrialBudget, optional
            Time limit of the trial.
        **changes : dict
            Fields of the recipe that replace those of the configuration.

        Returns
        -------
        Member, FoldedMember or TrialOutcome
            A TrialOutcome if there is a budget, and a FoldedMember if there are folds.
        """
        (outcome,) = self.together([configuration], [seed], budget, **changes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def together(
        self,
        configurations: Sequence[Mapping[str, Any]],
        seeds: Sequence[int],
        budget: TrialBudget | None = None,
        **changes: Any,
    ) -> list[Any]:
        """Train several trials side by side, single networks of one architecture as one stack.

        Parameters and results are those of `__call__`, one for each trial; an error stands for a
        trial whose training diverged, or whose objective failed. The limits of time are those of
        all together.
        """
        end = math.inf if budget is None else time.monotonic() + budget.seconds
        with self._time_limit(len(seeds)) as cancelled:
            of_trials = [self.jobs(c, s, **changes) for c, s in zip(configurations, seeds)]
            jobs, owners = _stack_alike(of_trials)
            deadline = end
            if budget is not None and budget.shorten and end < math.inf:
                # The mixture's moments need predictions of each network for the rows of all folds.
                n_passes = 1 if self.folds is None or self.head.classifies else 1 + len(self.folds)
                jobs, deadline, _ = plan_epochs(jobs, end, n_passes=n_passes)  # epochs that fit
            members, share = train_jointly(jobs, cancelled=cancelled, deadline=deadline)
        outcomes: list[Any] = []
        for k in range(len(seeds)):
            own: list[Any] = [m for m, owner in zip(members, owners) if owner == k]
            diverged = [member for member in own if isinstance(member, FloatingPointError)]
            outcome: Any = (diverged or own)[0]
            if self.folds is not None and not diverged:
                outcome = self.join(own, end)
            if budget is not None and not diverged:
                try:
                    outcome = TrialOutcome(outcome, self._objective(outcome, share), share)
                except ValueError as error:  # what the user's objective raised: others are kept
                    outcome = error
            outcomes.append(outcome)
        return outcomes

    def jobs(self, configuration: Mapping[str, Any], seed: int, **changes: Any) -> list[Job]:
        """Make the jobs of a trial, each with its data: a single job, or those of the folds.

        Parameters
        ----------
        configuration, seed, **changes
            See `__call__`.
        """
        recipe = replace(self.recipe(configuration), **changes)
        model = self.build(configuration)
        make_job = functools.partial(TrainingJob.of_model, model, self._head(configuration), recipe)
        if self.folds is None:
            return [(make_job([seed], held_out=self.held_out), self.data)]
        seeds = [trial_seed(seed, k) for k in range(len(self.folds))]
        # Folds that are alike can be stacked; networks come in the order of the folds.
        data, folds = self.data, self.folds
        units = number_rows(data.x, np.arange(len(data.x)))
        sizes = [[len(rows) for rows in fold] for fold in folds]
        weights = [data.weight[train].mean(dtype=float) for train, _ in folds]
        if units is not None:  # folds have equally many distinct rows, and copies are weights
            longest = max(len(train) for train, _ in folds)
            weights = [data.weight[train].sum(dtype=float) / longest for train, _ in folds]
            sizes = [[len(np.unique(units[rows])) for rows in fold] for fold in folds]
        are_alike = (np.ptp(sizes, axis=0) <= 1).all() and np.ptp(weights) <= _LARGEST_SPREAD
        if make_plan(make_job(seeds[:1]).network) is None or not are_alike:
            return [(make_job([seed]), data.split_rows(*fold)) for fold, seed in zip(folds, seeds)]
        data, splits = pad_splits(data, folds)
        # Stacks of nearly equal sizes, as few as possible.
        parts = np.array_split(np.arange(len(seeds)), math.ceil(len(seeds) / _LARGEST_STACK))
        stacks = [([seeds[k] for k in part], [splits[k] for k in part]) for part in parts]
        return [(make_job(s, stacked=True, splits=rows), data) for s, rows in stacks]

    def join(self, networks: Sequence[Member], deadline: float) -> FoldedMember:
        """Make the record of a trial with one network per fold.

        Every row is a validation row of at most one fold, and the record holds that fold's
        prediction of it. Rows that no fold validates do not count for the score. To the variance of
        numbers' predictions that of all networks' means is added: score and selection then judge
        the mixture that will predict. `center` is the mixture's mean. For further inputs,
        `held_out`, the record holds the prediction of all networks' mixture.

        After the `deadline` no further network predicts rows of other folds: two or more of them
        then stand for all.
        """
        data, head = self.data, self.head
        # Out-of-fold predictions (n_samples, n_raw). A stack's predictions may end with padding.
        raw = np.zeros((len(data.x), head.n_raw), dtype="float32")
        weight = np.zeros_like(data.weight)
        for network, (_, valid) in zip(networks, self.folds or ()):
            raw[valid] = np.asarray(network.held_out)[: len(valid)]
            weight[valid] = data.weight[valid]
        center = None
        if not head.classifies:
            loc, _ = head.moments(_predict_in_time(networks, data.x, deadline))
            center = loc.mean(axis=0, dtype="float64").astype("float32")
            variance = loc.var(axis=0, dtype="float64")
            n, k = len(networks), len(loc)
            if k < n:  # the means of k networks vary less than those of all
                variance *= (1 - 1 / n) / (1 - 1 / k)
            raw = head.widened(raw.astype("float64"), variance).astype("float32")
        score = mean_score(head, data.y, raw, weight, calibrates=self._calibrates)
        if self.held_out is not None:
            # Raw numbers that stand for the mixture of all networks.
            raws = _predict_in_time(networks, self.held_out, deadline)
            mixture = head.pooled(raws)
            # A mixture of mixtures has the components of all networks, as many in each trial.
            if mixture.shape[-1] > head.n_raw:
                mixture = head.pooled(np.resize(raws, (len(networks), *raws.shape[1:])))
                raw = head.pooled(np.stack([raw] * len(networks)))
            raw = np.concatenate([raw, mixture]).astype("float32")
        networks = [network.with_held_out(None) for network in networks]
        return FoldedMember(tuple(networks), raw, score, center)

    def _objective(self, result: Member | FoldedMember, share: float) -> float:
        """Compute the number that the search minimises.

        The user's function sees the common score in place of a network's own loss, and the seconds
        of a full training in place of those of its first `share`.
        """
        score = self._score(result)
        if self.objective is None:
            return score
        networks = tuple(replace(n, seconds=n.seconds / share) for n in result.networks)
        if isinstance(result, FoldedMember):
            result = replace(result, networks=networks)
        elif score != result.score:
            result = FoldedMember(networks, result.held_out, score)
        else:
            (result,) = networks
        try:
            return float(self.objective(result))
        except Exception as error:
            raise ValueError(f"`objective` raised {type(error).__name__}: {error}") from error

    def _score(self, result: Member | FoldedMember) -> float:
        """Score a trial by the loss that is common to all trials, whatever its own head."""
        n_valid, one_loss = len(self.data.x_valid), not hasattr(self.space, "head")
        if isinstance(result, FoldedMember) or not n_valid or one_loss:
            return result.score
        raw = np.asarray(result.held_out)[:n_valid]
        y, weight = self.data.y_valid, self.data.weight_valid
        return mean_score(self.head, y, raw, weight, calibrates=self._calibrates)

    def _head(self, configuration: Mapping[str, Any]) -> Any:
        decide = getattr(self.space, "head", None)
        return self.head if decide is None else decide(configuration, self.head)

    @contextlib.contextmanager
    def _time_limit(self, n_members: int = 1) -> Iterator[Callable[[], bool]]:
        """Yield the function `cancelled`, which training calls between its slices.

        The limit of a stack is that of all its members together. Training ends with
        InterruptedError when `cancelled` returns True. If the time limit was the reason, raise
        TimeoutError instead.
        """
        # Read the clock here and not in __init__: a trainer is pickled, and clocks of processes
        # differ.
        limit = math.inf if self.timeout is None else n_members * self.timeout
        deadline = time.monotonic() + limit
        try:
            yield lambda: self._cancelled or time.monotonic() > deadline
        except InterruptedError:
            if self._cancelled or time.monotonic() <= deadline:
                raise
            what = "The trial took" if n_members == 1 else f"{n_members} trials together took"
            raise TimeoutError(
                f"{what} longer than trial_timeout={self.timeout:g} s a trial: training was ended."
            ) from None

    def recipe(self, configuration: Mapping[str, Any]) -> Recipe:
        """Make the training recipe of a configuration."""
        fields = {"epochs": self.epochs, **self.space.recipe(configuration)}
        if unknown := sorted(fields.keys() - (known := Recipe.__dataclass_fields__).keys()):
            raise TypeError(f"`training` has unknown fields {unknown}. Known: {', '.join(known)}.")
        fields["epochs"] = min(fields["epochs"], self.max_epochs or math.inf)
        if fields.get("keep") == "best-calibrated" and not self._calibrates:
            fields["keep"] = "best-jointly"
        # A stack without folds has different trials.
        if self.folds is None and fields.get("keep") == "best-jointly":
            fields["keep"] = "best"
        return Recipe(**fields)

    @property
    def _calibrates(self) -> bool:
        """Whether an ensemble of classes will be calibrated, as its selection decides."""
        suffices = self.folds is not None or len(self.data.x_valid) >= CALIBRATION_ROWS
        return self.calibrate and self.held_out is None and suffices

    def build(self, configuration: Mapping[str, Any]) -> Any:
        """Build the network of a configuration, and check it."""

        def build(input_shape: tuple[int, ...], n_raw: int) -> Any:
            return self.space.build(configuration, input_shape, n_raw)

        return build_checked(build, self.data.x.shape[1:], self.head.n_raw, "The search space")


class MemberRefitter:
    """Refit networks of finished trials on all rows: a callable ``({"trial": k}, seed) -> Member``.

    Parameters
    ----------
    trainer : MemberTrainer
        The trainer of the search.
    trials : sequence of TrialRecord
        Trials that may be refitted.
    """

    needs_backend = True

    def __init__(self, trainer: MemberTrainer, trials: Sequence[TrialRecord]):
        self._trials = {record.trial_number: record for record in trials}
        self._trainer = replace(trainer, data=trainer.data.all_rows(), held_out=None, folds=None)

    def cancel(self) -> None:
        """Let trainings that run in other threads end at their next slice."""
        self._trainer.cancel()

    def __call__(self, request: Mapping[str, int], seed: int) -> Member:
        """Train on all rows for the number of epochs that was best in the search.

        A refit has no validation rows, so that it cannot stop early. It trains for the number of
        epochs of the trial's best network, and with the learning rates that its plateaus led to;
        for folds, with the averages of both. Schedules are completed within these epochs.
        """
        record = self._trials[request["trial"]]
        networks, best_epoch = record.result.networks, record.result.best_epoch
        # Factors of the learning rate in each epoch until the best one; a fold that stopped earlier
        # keeps its last rate. Plateaus multiply the rate: rates are averaged in logarithms.
        rates = [network.history["learning_rate"] for network in networks]
        epochs = np.arange(1 + best_epoch)
        logs = [np.log(np.take(curve, epochs, mode="clip") / curve[0]) for curve in rates]
        return self._trainer(
            record.configuration,
            record.seed,
            epochs=1 + best_epoch,
            epoch_rates=np.exp(np.mean(logs, axis=0)).tolist(),
            reduce_lr_patience=None,
            early_stopping_patience=None,
            keep="last",
        )
