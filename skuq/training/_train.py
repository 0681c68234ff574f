"""Train jobs on all cores: each calls its compiled program in slices, and makes its members.

The run chooses between a plain graph and XLA: the tier that is expected to finish first. A plain
graph starts at once, but each operation of each step passes over memory on its own. XLA
fuses operations into loops, and takes a second or two to compile them. The time it saves in a
step grows with the number of weights that the optimiser updates. It hardly depends on the rows
of a batch, since matrix products cost the same in both. The numbers were set by eye from 30
random networks of AutoDEUQ's space (``benchmarks/engine.py --only tiers`` repeats it).

Convolutions stay in plain graphs: on a CPU, XLA's convolutions take about nine times as long,
and on a GPU both call the same library.
"""

import functools
import math
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from skuq import backend
from skuq._messages import warn_user
from skuq.backend import BoundedCache, _compile_cache
from skuq.networks._member import Member
from skuq.networks._operator_network import EpistemicNetwork
from skuq.tables._splits import TrainingData
from skuq.training import _job
from skuq.training._job import TrainingJob
from skuq.training._network_checks import MAX_PASS_ROWS
from skuq.training._predict import predict_members

_OWN_LAYER = re.compile(r'"registered_name": "skuq>')  # skuq's layers for tables
_CONVOLUTION = re.compile(r'"class_name": "\w*Conv')


class _Costs:
    """Seconds that XLA costs and saves on a usual machine, as measured by benchmarks/engine.py."""

    compile: float = 1.2  # additional time to compile for XLA
    # Saved in each step: by itself, and by each weight that is updated.
    step: float = 1.5e-4
    weight: float = 2e-9
    # By each of skuq's layers for tables, which has many small operations: five networks of nine
    # such layers took 5 ms a step as a graph and 1.7 ms in XLA.
    own_layer: float = 3.5e-4
    # By artificial inputs, for which the network runs and is differentiated a second time: NOMU's
    # networks of 350 to 35,000 weights took 1.6 to 3 ms of processor time a step as a graph and
    # 0.1 to 0.6 ms in XLA.
    artificial: float = 1.3e-3
    # Share of its epochs that a run with early stopping takes on average, and runs of one program
    # that train at the same time on the smallest usual machine.
    share_of_epochs: float = 0.6
    runs_at_once: int = 2


def worth_xla(job: TrainingJob, n_train: int, n_weights: int) -> bool:
    """Tell whether XLA's compilation pays for itself in the runs that are alike.

    The answer depends only on the configuration and not on the machine or on measured times,
    because graph and XLA round differently and runs must be reproducible. `n_train` counts the
    rows of an epoch, and `n_weights` the weights of all members of one run.
    """
    recipe = job.recipe
    if _CONVOLUTION.search(job.network):
        return False
    n_in_turn = math.ceil(job.n_alike / _Costs.runs_at_once)
    n_steps = n_in_turn * recipe.epochs * math.ceil(n_train / recipe.batch_size)
    stops_early = recipe.early_stopping_patience not in (None, "cycle")
    expected = n_steps * (_Costs.share_of_epochs if stops_early else 1.0)
    saved = _Costs.step + _Costs.weight * n_weights
    saved += _Costs.own_layer * len(_OWN_LAYER.findall(job.network))
    saved += _Costs.artificial * (recipe.n_artificial > 0)
    return expected * saved > _Costs.compile


def cache_compiled_programs(folder: str | os.PathLike[str] | None = None) -> None:
    """Keep compiled programs in a folder, from which later processes load them.

    This has to be called before TensorFlow is first used, in skuq before the first fit, and holds
    for the processes that this one starts, too. The environment variable ``SKUQ_COMPILE_CACHE``
    does the same: a folder, 1 for the user's cache folder, or 0 for none. Joblib's workers, and
    with them searches and folds, use the user's cache folder by default.

    Parameters
    ----------
    folder : str or path, optional
        By default ``skuq`` in the user's cache folder, ``$XDG_CACHE_HOME`` or ``~/.cache``. Later
        calls change the folder for programs that are compiled from then on.

    Notes
    -----
    A folder is not used if it belongs to another user, or others can write to it or move it. It
    holds up to 256 MB, after which the oldest programs are removed. Programs for another version
    of TensorFlow or another kind of processor are not loaded.

    Examples
    --------
    >>> from skuq.training import cache_compiled_programs
    >>> cache_compiled_programs()  # doctest: +SKIP
    """
    asked = "1" if folder is None else os.path.abspath(os.path.expanduser(folder))
    os.environ[_compile_cache.VARIABLE] = asked
    if backend.loaded("skuq.backend._keras"):
        _compile_cache.change_folder(asked)


#: Compiled training programs of this process, by their keys.
programs = BoundedCache(max_size=16)

# One call of a program should return within about this time, so that an interrupt or a
# deadline is seen; a call costs a millisecond.
_SLICE_SECONDS = 1.0


def _raise_if(cancelled: Callable[[], bool] | None) -> None:
    if cancelled is not None and cancelled():
        raise InterruptedError("Training was cancelled.")


class TrainingRun:
    """A training run: a job on its data, which can be advanced epoch by epoch.

    Parameters
    ----------
    job : TrainingJob
        Network, recipes and seeds.
    data : TrainingData
        Rows to train on and to validate on.

    Attributes
    ----------
    n_epochs : int
        Number of epochs trained so far.
    jit : bool
        Whether the program is compiled through XLA.
    key : ProgramKey
        Equal for runs that share a compiled program.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.backend import keras
    >>> from skuq.networks import GaussianHead
    >>> from skuq.tables import TrainingData
    >>> from skuq.training import Recipe, TrainingJob, TrainingRun
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> data = TrainingData.without_validation(x, x**2, np.ones(20))
    >>> dense = keras.layers.Dense
    >>> model = keras.Sequential([keras.Input((1,)), dense(8, "relu"), dense(2)])
    >>> job = TrainingJob.of_model(model, GaussianHead(), Recipe(epochs=4), [0])
    >>> run = TrainingRun(job, data)
    >>> run.advance(1)
    >>> run.share
    0.25
    """

    def __init__(self, job: TrainingJob, data: TrainingData):
        from skuq.training._program import Blocks, start_carry  # loads TensorFlow

        self.job, self.data = job, data
        template, sizes = _job.template_of(job.network), _job.Sizes.of(job, data)
        jit = job.jit
        if jit is None:
            n_weights = sum(map(math.prod, template.shapes)) * len(job.seeds)
            jit = worth_xla(job, sizes.n_train, n_weights)
        self.jit, self.n_epochs = jit, 0
        self._n_planned = job.n_planned
        self._cycle_start = 0  # epoch after which the cycle of the learning rate began
        self._model, self._sizes = template.model, sizes
        self.key = _job.program_key(job, template, data, sizes, jit=jit)
        self._layout = Blocks(template.shapes, self.key.jit)
        self._streams = _job.HostStreams(job)
        self._tables = _job.data_tensors(data, job.splits if job.own_validation else None)
        self._scalars = _job.scalars_of(job, data, sizes)
        if self.key.rate_factors:  # one number per variable, spread over the weights' blocks
            factors = [_job.rate_factors(recipe, template, data) for recipe in job.recipes]
            numbers = np.asarray(job.join_members(factors), dtype="float32")
            self._scalars["rate_factors"] = self._layout.spread(numbers)
        self._shares = _job.batch_shares(self.key, sizes.n_train)
        # Each member starts from its own weights, given or drawn from its seed.
        words = [_job.seed_words(seed) for seed in job.seeds]
        first: Any = job.start or [template.draw(word.weights) for word in words]
        weights, states = zip(*first)
        self._carry = start_carry(
            self._layout.pack(np.asarray(job.join_members(weights), dtype="float32")),
            [job.join_members(values) for values in zip(*states)],
            self.key,
            job.join_members([recipe.learning_rate for recipe in job.recipes]),
            job.join_members([word.noise for word in words]),
        )
        self._history: list[np.ndarray] = []
        self._calls: list[tuple[int, float]] = []  # epochs and seconds of each call so far
        prior = self._prior(template)
        if prior is not None:
            self._tables = {**self._tables, "prior": backend.to_tensors(prior)}

    @property
    def is_compiled(self) -> bool:
        """Whether this process has compiled the program, for this run or another."""
        return self.key in programs

    @property
    def _seconds_of_epoch(self) -> float:
        """Seconds of an epoch; infinity before the second call, as the first one compiles.

        What a plan has measured counts as one call of several epochs.
        """
        planned, n_timed = self.job.epoch_seconds, _Budget.timed[-1]
        later = [*([(n_timed, n_timed * planned)] if planned else []), *self._calls[1:]]
        return sum(s for _, s in later) / sum(n for n, _ in later) if later else math.inf

    @property
    def share(self) -> float:
        """Share of the training that is done: 1 once it has ended, by early stopping too."""
        recipe, n_done = self.job.recipe, self.n_epochs
        if np.all(backend.to_host(self._carry["stopped"])):
            # A cycle that is shortened for the time would go on otherwise.
            is_whole = not recipe.stops_by_cycles or n_done in recipe.cycle_ends(recipe.epochs)
            n_done = recipe.epochs if is_whole else n_done
        return float(n_done / recipe.epochs)

    def _prior(self, template: _job.Template) -> np.ndarray | None:
        """Compute the outputs (.., n_rows, n_raw) of frozen prior networks for the table's rows.

        They are constant, except where adversarial training moves the rows.
        """
        network, is_epistemic = template.model, template.is_epistemic
        has_prior = is_epistemic and network.prior_scale and network.epinet is None
        if self.key.adversarial or not has_prior:  # an epinet's depends on each step's indices
            return None
        states = backend.to_host(self._carry["state"])
        n_members = len(self.job.seeds)
        # The state of each member, whose prior networks differ.
        states_of_members = (
            [[v[k] for v in states] for k in range(n_members)] if self.job.stacked else [states]
        )
        # The program's table is padded to `n_rows`, and so are the outputs for its rows.
        padding = [(0, self.key.n_rows - len(self.data.x)), (0, 0)]
        priors = []
        for state in states_of_members:
            parts = [
                np.asarray(template.drawing.prior(state, self.data.x[k : k + MAX_PASS_ROWS]))
                for k in range(0, len(self.data.x), MAX_PASS_ROWS)
            ]
            priors.append(np.pad(np.concatenate(parts), padding).astype("float32"))
        return self.job.join_members(priors)

    def advance(
        self,
        n_epochs: int | None = None,
        *,
        cancelled: Callable[[], bool] | None = None,
        report: Callable[[int, int], Any] | None = None,
        deadline: float = math.inf,
    ) -> None:
        """Train for `n_epochs` epochs, or until every member has stopped early.

        Parameters
        ----------
        n_epochs : int, optional
            Number of epochs. By default all that are planned.
        cancelled : callable, optional
            Asked before each slice; True ends the training.
        report : callable, optional
            Called after each slice with its number of epochs.
        deadline : float, default=inf
            Time of ``time.monotonic()`` by which slices have to end, except the first of a run.
            Before each slice the number of epochs is planned anew, and schedules with it.

        Raises
        ------
        InterruptedError
            If `cancelled` returned True.
        """
        key, most = self.key, math.inf if n_epochs is None else self.n_epochs + n_epochs
        stops = backend.to_host(self._carry["stopped"])
        while self.n_epochs < min(most, self._n_planned) and not np.all(stops):
            _raise_if(cancelled)
            left, of_epoch = deadline - time.monotonic(), self._seconds_of_epoch
            # The second epoch, which is not timed yet, may begin until the deadline.
            if self.n_epochs and left < (of_epoch if of_epoch < math.inf else 0):
                break
            if max(left, of_epoch) < math.inf:
                in_time = self.n_epochs + max(1, int(_Budget.planned * left / of_epoch))
                self._n_planned = min(in_time, self.job.recipe.epochs)
            called = time.perf_counter()
            # As many epochs as fit into a slice; a single one until an epoch has been timed.
            n = int(np.clip(min(_SLICE_SECONDS, left) / of_epoch, 1, key.epochs_per_call))
            if left < math.inf:  # a plan by few epochs is rough: it is made anew after as many more
                n = min(n, max(1, self.n_epochs))
            end = of_cycle = self._n_planned
            if self.job.recipe.stops_by_cycles:
                ends = self.job.recipe.cycle_ends(self.job.recipe.epochs)
                of_cycle = min(end, next(e for e in ends if e > self.n_epochs))
            n = int(min(n, most - self.n_epochs, of_cycle - self.n_epochs))
            carry, rows = self._call(n, cancelled)
            # Waits for the end of the call, so that its time can be taken.
            rows, stops = backend.to_host((rows, carry["stopped"]))
            self._calls.append((n, time.perf_counter() - called))
            self._carry, self.n_epochs = carry, self.n_epochs + n
            self._history.append(rows[:n])
            if self.n_epochs == of_cycle:
                if self._cycle_was_worse(self._cycle_start):
                    stops = np.ones_like(stops)
                    self._carry["stopped"] = backend.to_tensors(stops)
                self._cycle_start = of_cycle
            if report is not None:
                report(n, 0 if np.all(stops) else int(min(most, end)) - self.n_epochs)

    def _cycle_was_worse(self, start: int) -> bool:
        """Tell whether the best epoch since `start` is worse than that before it.

        Its loss has to be larger by more than the standard error of the members' mean difference.
        """
        losses = np.concatenate(self._history)[:, 1 if self.key.n_valid else 0]
        losses = losses.reshape(len(losses), -1)  # (n_epochs, n_members)
        losses = losses[:, np.isfinite(losses).all(axis=0)]
        if not start or losses.shape[1] < 2:
            return False
        means = losses.mean(axis=1)
        more = losses[start + means[start:].argmin()] - losses[means[:start].argmin()]
        return bool(more.mean() > more.std(ddof=1) / math.sqrt(len(more)))

    def compile(self) -> None:
        """Compile the program, unless this process has, by a call that trains no epoch."""
        backend.to_host(self._call(0)[1])

    def _call(self, n_epochs: int, cancelled: Any = None) -> tuple[dict[str, Any], Any]:
        program = programs.get(self.key, functools.partial(self._compile, cancelled))
        return program(*self._arguments(n_epochs))

    def _arguments(self, n_epochs: int) -> Any:
        """Prepare the program's arguments for the next epochs, as tensors."""
        key, sizes = self.key, self._sizes
        n_steps, recipe = math.ceil(sizes.n_train / key.batch_size), self.job.recipe
        functions = {"rates": recipe.rate_factors}
        if key.decay:
            functions["decays"] = functools.partial(recipe.regularization_factors, "weight_decay")
        if key.dropout_schedule:
            functions["dropouts"] = functools.partial(recipe.regularization_factors, "dropout")
        # Steps count from the recipe's first epoch, so that schedules go on from call to call.
        steps = np.arange(self.n_epochs * n_steps, (self.n_epochs + n_epochs) * n_steps)
        scheduled, schedules = recipe.scheduled_steps(steps, self._n_planned, n_steps), {}
        for name, function in functions.items():
            # Epochs and steps that only fill the program's shapes keep the factor 1.
            factors = np.ones((key.epochs_per_call, key.n_steps), dtype="float32")
            factors[:n_epochs, :n_steps] = function(*scheduled).reshape(n_epochs, n_steps)
            schedules[name] = factors
        feed = {
            **self._shares,
            "orders": self._streams.orders(key, n_epochs, sizes.n_rows, sizes.n_train),
            **schedules,
        }
        if key.n_artificial:
            feed["artificial"] = self._streams.artificial(key, n_epochs, n_steps)
        counts = {"n_steps": np.int32(n_steps), "n_epochs": np.int32(n_epochs)}
        return backend.to_tensors((self._carry, self._tables, feed, {**self._scalars, **counts}))

    def _compile(self, cancelled: Callable[[], bool] | None) -> Any:
        # Programs compile one after the other: the training may be cancelled while this one waits.
        _raise_if(cancelled)
        from skuq.training._program import TrainingProgram

        program = TrainingProgram(self._model, self.key)
        arguments = self._arguments(0)
        return backend.compile_program(program.run, arguments, jit=self.key.jit, key=self.key)

    def members(self) -> list[Member | FloatingPointError]:
        """Make the record of each member so far, or an error in the place of one that diverged.

        The weights are those of the epoch that the recipe keeps: the best one, or with
        ``keep="last"`` the current one. The run can go on afterwards.
        """
        job, data = self.job, self.data
        best, states = backend.to_host((self._carry["best_weights"], self._carry["best_state"]))
        weights, history = self._layout.join(best), np.concatenate(self._history)
        held_out = [data.x_valid if job.held_out is None else job.held_out] * len(job.seeds)
        if job.splits is not None and job.own_validation:
            held_out = [data.x[valid] for _, valid in job.splits]
        if not job.stacked:  # add a member axis of length one
            history, weights, states = history[..., None], weights[None], [s[None] for s in states]
        watched = history[:, 1 if self.key.n_valid else 0]
        if job.recipe.keeps_jointly:
            mean = np.ma.masked_invalid(watched).mean(axis=1, keepdims=True).filled(np.nan)
            watched = np.broadcast_to(mean, watched.shape)
        of_members = [tuple(value[k] for value in states) for k in range(len(weights))]
        arrays = weights, of_members, np.moveaxis(history, -1, 0), watched.T, held_out
        return [self._member(k, *parts) for k, parts in enumerate(zip(*arrays))]

    def _member(
        self, k: int, weights: Any, state: Any, history: Any, chosen_by: Any, held_out: Any
    ) -> Member | FloatingPointError:
        """Make the record of member k, or the error of one that diverged.

        `weights` and `state` are those of the epoch that the recipe keeps. `history` (n_epochs, 3)
        holds training loss, validation loss and learning rate, NaN for epochs that were not run,
        and `chosen_by` (n_epochs,) the loss by which the best epoch was chosen. The record includes
        the member's predictions of `held_out`.
        """
        job, key, recipe = self.job, self.key, self.job.recipes[k]
        settings = f"(optimizer={recipe.optimizer}, learning_rate={recipe.learning_rate:.3g})"
        ran = ~np.isnan(history[:, 2])  # only epochs that were run have a learning rate
        history, chosen_by = history[ran], chosen_by[ran]
        watched = history[:, 1] if key.n_valid else history[:, 0]
        if not np.isfinite(watched).any():
            what = "validation loss" if key.n_valid else "training loss"
            return FloatingPointError(
                f"Training diverged: no finite {what} in {len(history)} epochs {settings}."
            )
        if not np.isfinite(weights).all():
            return FloatingPointError(
                f"Training diverged: the last epoch's weights are not finite {settings}."
            )
        # The epochs of the first call, which compiles, count as the others do on average.
        (n_first, first), *later = self._calls
        seconds = min(first, n_first * self._seconds_of_epoch) + sum(s for _, s in later)
        member = Member(
            network=job.network,
            weights=weights,
            state=state,
            history=dict(zip(("loss", "val_loss", "learning_rate"), history.T)),
            best_epoch=int(len(watched) - 1 if recipe.keep == "last" else np.nanargmin(chosen_by)),
            # Predictions are added below, as they need the record itself.
            held_out=None,
            seed=job.seeds[k],
            seconds=seconds / len(job.seeds),
            tier="xla" if key.jit else "graph",
        )
        # An epistemic network predicts draws, and their indices are chosen after training.
        if isinstance(key.network, EpistemicNetwork):
            return member
        if not len(held_out):  # some Keras layers fail on zero rows
            return member.with_held_out(np.empty((0, job.head.n_raw), dtype="float32"))
        raw = predict_members([member], held_out, cache=False)[0]
        return member.with_held_out(raw.astype("float32"))


class _Budget:
    """How a deadline is divided among epochs and jobs."""

    planned: float = 0.9  # share of the time left that epochs are planned for
    beginning: float = 0.25  # share of the time after which no further job begins
    # A job that has fewer seconds trains as a plain graph: XLA halves a step, but takes three to
    # seven times as long to compile, on usual machines 6 to 12 seconds.
    short: float = 20.0
    # Epochs of the slices that are timed, one after the other. Of long epochs, as a share of the
    # time left, only the first one is, and of others two, unless these are short (in seconds): a
    # call of the program would be most of them.
    timed: tuple[int, ...] = (1, 1, 8)
    long_epoch: float = 0.2
    short_epoch: float = 0.05
    # Seconds; avoids division by zero for jobs of one epoch, which are not timed.
    clock_tick: float = 1e-6


#: Members, with an error in the place of each diverged one.
Members = list[Member | FloatingPointError]


def train_jointly(
    jobs: Sequence[tuple[TrainingJob, TrainingData]],
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int, int], Any] | None = None,
    deadline: float = math.inf,
) -> tuple[Members, float]:
    """Train several jobs, each on its own data.

    Large stacks are divided into groups. As many groups run at the same time as there are cores.

    Parameters
    ----------
    jobs : sequence of (TrainingJob, TrainingData)
        Each job with the data that it trains on.
    cancelled, report, deadline :
        See `skuq.training.train`.

    Returns
    -------
    members : list of Member or FloatingPointError
        Members of all jobs, each at its network's best epoch.
    share : float
        Share of the training that is done; less than 1 if a deadline ended it.
    """
    groups = [(group, data) for job, data in jobs for group in job.groups()]
    ended = threading.Event()  # set when a group fails or the caller is interrupted
    left = [group.n_planned for group, _ in groups]

    # Groups that train in turn share the time, and the last one has all that is left.
    needed = [group.n_planned * (group.epoch_seconds or 1.0) for group, _ in groups]
    seconds, of_all = max(deadline - time.monotonic(), 0.0), time_of_groups(needed)
    limits = [seconds * of_group / of_all for of_group in needed[:-1]] + [math.inf]

    def train_group(k: int) -> tuple[Members, float]:
        def report_group(n_epochs: int, n_left: int) -> None:
            if report is not None:  # with the epochs that all groups still have together
                left[k] = n_left
                report(n_epochs, sum(left))

        run = TrainingRun(*groups[k])
        run.advance(
            cancelled=lambda: ended.is_set() or (cancelled is not None and cancelled()),
            report=report_group,
            deadline=min(deadline, time.monotonic() + limits[k]),
        )
        # Only the small records are kept, and the run's arrays are freed before the next group.
        return run.members(), run.share

    tasks = [functools.partial(train_group, k) for k in range(len(groups))]
    n_threads = backend.n_programs_at_once() if len(groups) > 1 else 1
    members, shares = zip(*backend.run_in_threads(tasks, n_threads, stop=ended.set))
    return sum(members, []), min(shares)


def plan_epochs(
    jobs: Sequence[tuple[TrainingJob, TrainingData]],
    deadline: float,
    *,
    needs_all: bool = True,
    n_passes: int = 1,
) -> tuple[list[tuple[TrainingJob, TrainingData]], float, float]:
    """Plan the epochs of jobs until a deadline, at least one: the same share of those of each.

    One group of each job's members is compiled, and trains two epochs, one if it is long, and
    more if they are short. The last ones are timed.

    Parameters
    ----------
    jobs : sequence of (TrainingJob, TrainingData)
    deadline : float
        Time of ``time.monotonic()`` at which they have to end. Jobs with less than 20 seconds each
        train as plain graphs, unless XLA has compiled them before.
    needs_all : bool, default=True
        False leaves jobs out that would be measured after a quarter of the time, unless all epochs
        are expected to fit.
    n_passes : int, default=1
        Number of times that members predict as many rows as each holds out.

    Returns
    -------
    jobs : list of (TrainingJob, TrainingData)
        Jobs with their shares, and the tier (graph or XLA) fixed to the measured one.
    deadline : float
        Time at which they have to be trained, so that there is time for the predictions.
    seconds : float
        Estimated time in which all of their epochs are trained and predictions are made.
    """
    needed: list[float] = []  # seconds of each group
    to_predict = 0.0  # seconds in which all members predict their rows, one after the other
    measured: list[tuple[TrainingJob, TrainingData]] = []  # their tier is fixed
    ended = threading.Event()  # set when the caller is interrupted
    seconds = deadline - time.monotonic()

    def measure() -> None:
        nonlocal to_predict
        for job, data in jobs:
            left, groups = deadline - time.monotonic(), job.groups()
            if measured and not needs_all and left < (1 - _Budget.beginning) * seconds:
                # Whole trainings of one more job like those before, and the time to measure it.
                of_all = time_of_groups(needed) / _Budget.planned + seconds - left
                if of_all * (len(measured) + 1) / len(measured) > seconds:
                    break
            run, is_short = TrainingRun(groups[0], data), left < _Budget.short * len(jobs)
            if run.jit and job.jit is None and is_short and not run.is_compiled:
                run = TrainingRun(replace(groups[0], jit=False), data)
            run.compile()
            for k, n_epochs in enumerate(_Budget.timed):  # the first epoch is slower than others
                began, n_done = time.monotonic(), run.n_epochs
                run.advance(n_epochs, cancelled=ended.is_set)
                trained = time.monotonic()
                of_epoch = max(trained - began, _Budget.clock_tick) / max(1, run.n_epochs - n_done)
                shortest = 0.0 if k else _Budget.long_epoch * (deadline - trained)
                if of_epoch > max(_Budget.short_epoch, shortest):
                    break
            run.members()
            needed.extend([of_epoch * job.recipe.epochs] * len(groups))
            to_predict += n_passes * (time.monotonic() - trained) * len(groups)
            measured.append((replace(job, jit=run.jit, epoch_seconds=of_epoch), data))

    backend.run_in_threads([measure], stop=ended.set)
    of_all = time_of_groups(needed) / _Budget.planned
    deadline -= min(to_predict, max(seconds, 0.0) / 2)
    share = min(1.0, max(deadline - time.monotonic(), 0.0) / of_all)
    planned = [(replace(job, share=share), data) for job, data in measured]
    return planned, deadline, of_all + to_predict


def time_of_groups(needed: Sequence[float]) -> float:
    """Compute the time of groups that start in this order, each on the core that is free first."""
    cores = [0.0] * min(backend.n_programs_at_once(), len(needed))
    for group in needed:
        cores[cores.index(min(cores))] += group
    return max(cores)


def train(
    jobs: TrainingJob | Sequence[TrainingJob],
    data: TrainingData,
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int, int], Any] | None = None,
    deadline: float = math.inf,
) -> list[Member | FloatingPointError]:
    """Train the networks of one or several jobs, and return each one's kept epoch as a member.

    The members of a large stack train in groups, as many at the same time as there are cores.
    `TrainingRun` trains a job epoch by epoch instead.

    The semantics are those of ``model.fit`` with ``ReduceLROnPlateau``,
    ``EarlyStopping(restore_best_weights=True)`` and ``TerminateOnNaN``. Every member of a stack
    equals the one trained alone, up to rounding: it has its own first weights, order of rows,
    learning rate, plateaus and early stopping.

    Parameters
    ----------
    jobs : TrainingJob or sequence of TrainingJob
        Jobs on the same data.
    data : TrainingData
        Rows to train and to validate on. Without validation rows the training loss decides about
        plateaus, early stopping and the best epoch.
    cancelled : callable, optional
        Called about once a second; when it returns True, training ends with InterruptedError.
    report : callable, optional
        ``report(n_epochs, n_left)`` is called after each slice of a run, with the slice's number
        of epochs and the largest number of epochs that all networks together still have.
    deadline : float, default=inf
        Time of ``time.monotonic()`` at which the training has to end, after one epoch at least.
        Schedules are shortened to the epochs that fit.

    Returns
    -------
    list of Member or FloatingPointError
        One entry for each seed of each job: a FloatingPointError if no epoch of the member had a
        finite loss.

    Raises
    ------
    InterruptedError
        If `cancelled` returned True.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.backend import keras
    >>> from skuq.networks import GaussianHead
    >>> from skuq.tables import TrainingData
    >>> from skuq.training import Recipe, TrainingJob, train
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> data = TrainingData.without_validation(x, x**2, np.ones(20))
    >>> dense = keras.layers.Dense
    >>> model = keras.Sequential([keras.Input((1,)), dense(8, "relu"), dense(2)])
    >>> job = TrainingJob.of_model(model, GaussianHead(), Recipe(epochs=4), seeds=[0])
    >>> (member,) = train(job, data)
    >>> member.n_epochs, member.n_weights
    (4, 34)
    """
    jobs = [jobs] if isinstance(jobs, TrainingJob) else jobs
    pairs = [(job, data) for job in jobs]
    return train_jointly(pairs, cancelled=cancelled, report=report, deadline=deadline)[0]


def find_completed(members: Sequence[Member | FloatingPointError]) -> list[int]:
    """Find the positions of members that did not diverge, and warn if some did.

    A member whose training loss stopped being finite is left out even if an earlier epoch was
    finite, because a single bad member ruins a mixture. Raises FloatingPointError if all members
    diverged.
    """
    kept = [k for k, member in enumerate(members) if not has_diverged(member)]
    if not kept:
        what = "The network" if len(members) == 1 else f"All {len(members)} networks"
        first = "."
        if isinstance(members[0], Exception):
            first = f", the first with: {str(members[0]).rstrip('.')}."
        raise FloatingPointError(
            f"{what} diverged{first} Try a smaller `learning_rate`, weaker penalties, or "
            "`training=Training(clip_norm=1.0)`."
        )
    if len(kept) < len(members):
        warn_user(
            f"{len(members) - len(kept)} of {len(members)} networks diverged and were left out."
        )
    return kept


def has_diverged(member: Member | FloatingPointError) -> bool:
    """Tell whether training failed, or the loss was not finite in every epoch."""
    if isinstance(member, FloatingPointError):
        return True
    return not bool(np.isfinite(member.history["loss"]).all())
