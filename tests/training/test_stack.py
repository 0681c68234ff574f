"""Recipes, jobs trained in parts and in stacks, limits of time, epochs of some rows, trials."""

import functools
import itertools
import math
import pickle
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from heads import CategoricalHead, GaussianMixtureHead, NomuHead, bound_tabular_space, build_nomu
from numpy.testing import assert_allclose, assert_array_equal
from operators import EncoderDecoder, EpiNetLayers, EpistemicNetwork, OperatorHead
from plans import draw_variables, sequential, without_names
from processes import wait_until
from sklearn.model_selection import KFold
from small_models import TinySpace
from tiers import cases
from training_data import STEADY, MemberTrainer, assert_equal_members, make_data, noisy, unplanned

from skuq import backend
from skuq.backend import BoundedCache, keras
from skuq.estimators.methods._trial_trainer import can_stack
from skuq.networks import GaussianHead
from skuq.search._records import TrialBudget
from skuq.tables import TrainingData
from skuq.training import Recipe, TrainingJob, TrainingRun, _job, _train, train

layers = keras.layers
HEAD, RECIPE = GaussianHead(), Recipe(learning_rate=0.02, batch_size=16, epochs=6, **STEADY)
THIRDS = [(np.arange(45)[k::3], np.delete(np.arange(45), np.s_[k::3])) for k in range(3)]
CONFIGURATION = {"units": 8, "activation": "tanh", "learning_rate": 0.03, "batch_size": 16}
EPOCHS = 20


@pytest.fixture(scope="module")
def data():
    return make_data()


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch):
    """Also on a machine of one core."""
    monkeypatch.setattr(backend, "n_programs_at_once", lambda: 2)


def small():
    noise = layers.BatchNormalization(momentum=0.8), layers.Dropout(0.3)
    hidden = layers.Dense(9, "relu", kernel_regularizer="l2")
    return sequential((3,), hidden, *noise, layers.Dense(2))


def job_of(n_members, recipes=RECIPE, model=noisy, head=HEAD, **fields):
    settings = {"stacked": True, "jit": False, **fields}
    return TrainingJob.of_model(model(), head, recipes, range(1, n_members + 1), **settings)


def one_by_one(job, data):
    starts, members = job.start or [None] * len(job.seeds), []
    for recipe, seed, start in zip(job.recipes, job.seeds, starts):
        fields = {"recipes": [recipe], "seeds": [seed], "start": start and [start]}
        members += train(replace(job, stacked=False, **fields), data)
    return members


@cases("optimizer", "nadam", "adadelta", "rmsprop", quick=1)
def test_every_setting_of_their_own_together(data, optimizer):
    """Also plateaus and early stopping: a member that has stopped stands still."""
    names = ("learning_rate", "reduce_lr_patience", "early_stopping_patience", "l2")
    names += ("weight_decay", "clip_norm", "dropout", "rate_factors_of_layers")
    same = {"batch_size": 16, "epochs": 60, "reduce_lr_factor": 0.5, "schedule": "cosine"}
    recipes = [
        Recipe(optimizer, **dict(zip(names, values)), **same, warmup=0.1)
        for values in (
            (0.003, 3, 5, 0.0, 0.1, 1.0, 0.0, {"*/bias": 0.5}),
            (0.1, 2, 4, 1e-3, 0.0, 0.1, 0.4, {"*/kernel": 2.0}),
            (0.01, None, None, 1e-4, 0.01, 100.0, 0.2, {}),
        )
    ]
    job = job_of(3, recipes, model=small)
    stack = train(job, data)
    assert_equal_members(stack, one_by_one(job, data), rtol=1e-3)
    lengths = [len(member.history["loss"]) for member in stack]
    assert lengths[2] == 60 and min(lengths) < 60


def test_members_that_diverge_or_have_rows_of_their_own_do_not_disturb_the_others(data, rng):
    recipes = [Recipe("sgd", learning_rate=rate, epochs=5) for rate in (0.01, 0.5, 0.02)]
    start = [draw_variables(small(), k) for k in range(3)]
    start[1][0][:] = np.nan
    job = job_of(3, recipes, model=small, start=start)
    stack, alone = train(job, data), one_by_one(job, data)
    for members in (stack, alone):
        error = members.pop(1)
        assert isinstance(error, FloatingPointError) and "learning_rate=0.5" in str(error)
    assert_equal_members(stack, alone, rtol=1e-4)
    # Each member's split equals that of separate data for this member.
    data = make_data(n_train=65, n_valid=0)
    splits = [(order[:45], order[45:]) for order in (rng.permutation(65) for _ in range(2))]
    model, alone = small(), []
    for seed, rows in zip([1, 2], splits):
        own = TrainingData(*(a[part] for part in rows for a in (data.x, data.y, data.weight)))
        # TrainingData scales weights to a mean of 1; here they are as they were.
        object.__setattr__(own, "weight", data.weight[rows[0]])
        object.__setattr__(own, "weight_valid", data.weight[rows[1]])
        job = TrainingJob.of_model(model, HEAD, RECIPE, [seed], jit=False)
        alone += train(job, own)
    stack = train(job_of(2, model=lambda: model, splits=splits), data)
    assert_equal_members(stack, alone, rtol=1e-4)


def test_members_of_a_stack_can_weigh_losses_differently(data):
    """Each learns as from its own loss alone, in one program."""
    network = sequential((3,), layers.Dense(12))

    def trained(*weights):
        head = GaussianMixtureHead(n_components=2, weighs_losses=bool(weights))
        settings = [(("crps", weight),) for weight in weights] or [(), ()]
        recipes = [replace(RECIPE, loss_settings=each) for each in settings]
        return train(job_of(2, recipes, model=lambda: network, head=head), data)

    alone = [trained()[0], trained(0.0, 0.0)[1]]
    assert_equal_members(trained(1.0, 0.0), alone, rtol=1e-4)


def test_seeds_and_settings_share_one_program_and_compiling_first_changes_no_member(data):
    recipe = Recipe(batch_size=8, epochs=2, l2=1e-3, schedule="cosine")
    train(job_of(3, recipe), data)
    n_made = _train.programs.n_made
    changed = (0.1, 1e-5, "exponential", 44), (1e-4, 0.1, "constant", 43)
    for rate, l2, schedule, n_train in changed:
        settings = {"schedule": schedule, "early_stopping_patience": n_train % 10}
        recipe = Recipe(batch_size=8, epochs=3, learning_rate=rate, l2=l2, **settings)
        # Layers have other names each time: a program knows none.
        train(job_of(3, recipe), make_data(n_train, 19))
    assert _train.programs.n_made == n_made
    job = job_of(2)
    run = TrainingRun(job, data)
    run.compile()
    assert run.is_compiled and run.share == 0
    run.advance()
    assert_equal_members(run.members(), train(job, data))
    assert_equal_members(train(replace(job, jit=True), data), run.members(), rtol=1e-4)


@cases(("n", "sizes"), (1, [1]), (7, [7]), (8, [4, 4]), (10, [5, 5]), (12, [4, 4, 4]))
def test_groups_are_of_equal_size_and_of_four_at_least(n, sizes):
    recipes = [replace(RECIPE, learning_rate=0.01 * (k + 1)) for k in range(n)]
    splits = [(np.arange(k, k + 30), np.arange(3)) for k in range(n)]
    start = [draw_variables(small(), k) for k in range(n)]
    orders = [functools.partial(np.roll, np.arange(30), k) for k in range(n)]
    fields = {"splits": splits, "start": start, "permutations": orders, "held_out": np.ones((2, 3))}
    job = job_of(n, recipes, model=small, **fields)
    groups = job.groups()
    assert [len(group.seeds) for group in groups] == sizes
    for name in ("recipes", "seeds", "splits", "start", "permutations"):
        found = [value for group in groups for value in getattr(group, name)]
        assert all(a is b for a, b in zip(found, getattr(job, name), strict=True))
    for name in ("held_out", "network", "head", "stacked", "jit"):
        assert all(getattr(group, name) is getattr(job, name) for group in groups)


@cases(("n_members", "jit"), (4, False), (8, False), (12, True))
def test_the_choice_of_xla_counts_the_groups_that_train_in_turn(data, n_members, jit):
    """They share one program, which is compiled once. Two groups train at the same time."""
    recipe = replace(RECIPE, epochs=5000 // 3)  # XLA saves 0.75 s and takes 1.2 s to compile
    groups = job_of(n_members, recipe, jit=None).groups()
    assert {TrainingRun(group, data).jit for group in groups} == {jit}


@cases(("model", "jit"), (unplanned, False), (noisy, False), (noisy, True), quick=1)
def test_jobs_and_groups_trained_together_are_those_trained_alone(data, model, jit):
    recipes = [replace(RECIPE, learning_rate=0.005 * (k + 1)) for k in range(8)]
    job, other = job_of(8, recipes, model=model, jit=jit), job_of(3, model=noisy)
    parts = [(recipes[half], job.seeds[half]) for half in (slice(0, 4), slice(4, 8))]
    alone = [replace(job, recipes=r, seeds=seeds, start=None) for r, seeds in parts]
    expected = [member for part in (*alone, other) for member in train(part, data)]
    assert_equal_members(train([job, other], data), expected)


def test_groups_run_at_the_same_time_in_threads_and_an_error_ends_the_others(data, monkeypatch):
    """Reports count the epochs of groups that wait: of three, two run at the same time."""
    both, threads, reports = threading.Barrier(2, timeout=60), set(), []

    def report(n_epochs, n_left):
        reports.append((n_epochs, n_left))
        if len(threads) < 2:
            threads.add(threading.get_ident())
            both.wait()  # breaks unless two are here at once

    assert len(train(job_of(12), data, report=report)) == 12
    assert len(threads) == 2 and reports[0][1] >= 2 * RECIPE.epochs
    assert sum(n for n, _ in reports) == 3 * RECIPE.epochs and reports[-1][1] == 0

    class Broken(TrainingRun):
        """Its second group fails, and the first one would never end by itself."""

        def advance(self, *args, cancelled=None, **settings):
            if 5 in self.job.seeds:
                raise OverflowError("the second group")
            wait_until(cancelled)
            raise InterruptedError

    monkeypatch.setattr("skuq.training._train.TrainingRun", Broken)
    with pytest.raises(OverflowError, match="the second group"):
        train(job_of(8), data)


def test_groups_that_train_in_turn_divide_the_time_by_what_they_need(data, monkeypatch):
    ends = []

    class Run(TrainingRun):
        share, members = 1.0, list

        def advance(self, *, deadline, **settings):
            ends.append(deadline)

    monkeypatch.setattr("skuq.training._train.TrainingRun", Run)
    monkeypatch.setattr(_train, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(backend, "n_programs_at_once", lambda: 1)
    jobs = [replace(job_of(4), epoch_seconds=seconds) for seconds in (1.0, 2.0, 5.0)]
    train(jobs, data, deadline=500.0)
    assert ends == [100 + 400 / 8, 100 + 400 / 4, 500]


def test_a_training_that_is_cancelled_while_its_program_waits_compiles_nothing(data):
    answers, n_made = itertools.chain([False], itertools.repeat(True)), _train.programs.n_made
    with pytest.raises(InterruptedError):
        train(job_of(2, replace(RECIPE, batch_size=19)), data, cancelled=lambda: next(answers))
    assert _train.programs.n_made == n_made


def test_a_deadline_leaves_a_first_epoch_and_begins_no_slice_that_ends_later(data, monkeypatch):
    members = train(job_of(8, replace(RECIPE, epochs=1000)), data, deadline=time.monotonic() - 1)
    # A slice is of one epoch until it is known how long they take.
    assert [member.n_epochs for member in members] == [1] * 8
    for found, expected in zip(members, train(job_of(8, replace(RECIPE, epochs=1)), data)):
        assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=1e-5)
        assert found.best_epoch == 0 and len(found.held_out) == 20
    now = 0.0

    def tick():  # twice a slice, which takes 5 s of 10
        nonlocal now
        now += 5.0
        return now

    clock = SimpleNamespace(monotonic=lambda: now, perf_counter=tick)
    monkeypatch.setattr("skuq.training._train.time", clock)
    run = TrainingRun(job_of(1, replace(RECIPE, epochs=10**6)), data)
    run.advance(deadline=31.0)
    assert (run.n_epochs, now) == (3, 30.0)
    # Its schedules are complete: a later deadline does not go on with them.
    run.advance(deadline=99.0)
    assert run.n_epochs == 3


@cases(("before", "later"), (0.5, 0.1), (0.5, 2.0), (0.5, 0.5), quick=1)
def test_epochs_are_planned_anew_for_the_time_left(data, monkeypatch, before, later):
    """Epochs take other times from the twentieth on; 100 s are for 180 as at first."""
    now, parts = 0.0, []

    def rate_factors(recipe, steps, total):
        parts.extend([(steps[0], steps[-1] + 1, total)] if len(steps) else [])
        return np.ones(len(steps))

    class Run(TrainingRun):
        def _call(self, n_epochs, *settings):
            nonlocal now
            now += n_epochs * (before if self.n_epochs < 20 else later)
            return super()._call(n_epochs, *settings)

    clock = SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now)
    monkeypatch.setattr("skuq.training._train.time", clock)
    monkeypatch.setattr(Recipe, "rate_factors", rate_factors)
    job = job_of(1, replace(RECIPE, epochs=10**4, schedule="cosine"))
    run = Run(replace(job, share=0.018), data)
    run.advance(deadline=100.0)
    expected = 20 + (100 - 20 * before) / later
    assert 0.85 * expected < run.n_epochs <= expected and 80 < now <= 100
    assert run.share == run.n_epochs / 10**4
    starts, ends, totals = np.transpose(parts)  # The schedule is complete.
    assert_array_equal(starts, [0, *ends[:-1]])
    assert totals[0] == 180 * 3 and ends[-1] == totals[-1] == run.n_epochs * 3


@pytest.fixture
def fake(monkeypatch):
    """Trainings that only move a clock: epochs of 2 s, 1.2 s with XLA, and what is given here."""
    fake = SimpleNamespace(now=100.0, compiled=set(), n_at_once=2)
    fake.to_compile, fake.to_predict = {False: 0, True: 0}, 0

    class Run:
        def __init__(self, job, data):
            self.jit, self.n_left, self.n_epochs = job.jit is not False, job.recipe.epochs, 0
            self.key = without_names(job.network), self.jit

        is_compiled = property(lambda self: self.key in fake.compiled)

        def compile(self):
            fake.now += 0 if self.is_compiled else fake.to_compile[self.jit]
            fake.compiled.add(self.key)

        def advance(self, n_epochs, **settings):
            assert self.is_compiled
            if self.n_left:
                fake.now += 1.2 if self.jit else 2.0
                self.n_left, self.n_epochs = self.n_left - 1, self.n_epochs + 1

        def members(self):
            fake.now += fake.to_predict

    clock = SimpleNamespace(monotonic=lambda: fake.now)
    monkeypatch.setattr("skuq.training._train.TrainingRun", Run)
    monkeypatch.setattr("skuq.training._train.time", clock)
    monkeypatch.setattr(backend, "n_programs_at_once", lambda: fake.n_at_once)
    return fake


@cases(
    ("seconds", "n_members", "at_once", "epochs"),
    (1e9, 4, 2, 50),  # never more than the recipe has
    (-9, 4, 2, 1),
    (40.0, 8, 2, 18),  # 0.9 * 40 / 2
    (40.0, 8, 1, 9),  # one group after the other
)
def test_shortened_jobs_have_the_epochs_in_time(data, fake, seconds, n_members, at_once, epochs):
    fake.to_compile, fake.to_predict, fake.n_at_once = {False: 7.0}, 0.5, at_once
    job, n_groups = job_of(n_members, replace(RECIPE, epochs=50)), n_members // 4
    # The limit counts the compilation, the two epochs measured, and all predictions.
    end = 100 + 7 + 2 * 2 + 0.5 + 0.5 * n_groups + seconds
    ((found, _),), deadline, needed = _train.plan_epochs([(job, data)], end)
    assert (found.n_planned, found.recipes, found.seeds) == (epochs, job.recipes, job.seeds)
    # What is told to suffice does.
    in_turn = n_groups if at_once == 1 else 1
    assert needed == pytest.approx(50 * 2 * in_turn / 0.9 + 0.5 * n_groups)
    assert end - deadline == pytest.approx(0.5 * n_groups)


def test_several_jobs_keep_the_same_share_of_their_epochs_and_none_begins_late(data, fake):
    # The job with more epochs decides, each has a core.
    jobs = [job_of(4, replace(RECIPE, epochs=n)) for n in (100, 40)]

    def shorten(jobs, deadline):
        pairs = [(job, data) for job in jobs]
        return [job for job, _ in _train.plan_epochs(pairs, deadline, needs_all=False)[0]]

    found = shorten(jobs, 100 + 2 * 4 + 0.5001 * 200 / 0.9)
    assert [job.n_planned for job in found] == [50, 20]
    # Its second epoch, which would be timed, there is not.
    (found,) = shorten([job_of(4, replace(RECIPE, epochs=1))], fake.now + 2.0)
    assert found.n_planned == 1
    fake.to_compile, one = {False: 10.0}, small()  # Kinds that would begin late are left out.
    others = [functools.partial(sequential, (3,), layers.Dense(2, a)) for a in ("tanh", "relu")]
    models = [lambda: one, others[0], lambda: one, others[1]]
    jobs = [job_of(4, replace(RECIPE, epochs=50), model=model) for model in models]
    for seconds, n_jobs in ((-1.0, 1), (40.0, 1), (60.0, 2), (200.0, 4)):
        fake.now, fake.compiled = 100.0, set()
        found = shorten(jobs, 100 + seconds)
        assert [job.network for job in found] == [job.network for job in jobs[:n_jobs]]
    fake.now, fake.compiled = 100.0, set()  # Unless all epochs of one more fit.
    few = [job_of(4, replace(RECIPE, epochs=5), model=model) for model in models]
    assert len(shorten(few, 100 + 58.0)) == 2
    fake.now, fake.compiled = 100.0, set()
    assert len(shorten(few, 100 + 60.0)) == 3
    # Those that are compiled, too. Each takes two seconds to measure, or four of 32.
    for seconds, n_jobs in ((7.9, 1), (8.0, 2), (32.0, 3), (60.0, 4)):
        assert len(shorten(jobs, fake.now + seconds)) == n_jobs


@cases(("seconds", "jit"), (39.9, False), (40.0, True), (math.inf, True))
def test_little_time_is_for_a_plain_graph(data, fake, seconds, jit):
    jobs = [(job_of(4, jit=None), data)] * 2  # of 20 s each
    found, *_ = _train.plan_epochs(jobs, 100 + seconds)
    assert [job.jit for job, _ in found] == [jit] * 2 and len(fake.compiled) == 1
    # A program that XLA has compiled is used, however little time is left.
    ((again, _),), *_ = _train.plan_epochs(jobs[:1], fake.now + 1.0)
    assert again.jit is jit


def test_epochs_of_some_steps_train_on_the_first_rows_of_their_order(data, rng):
    """Weights and losses equal those of one long epoch of the same rows, with a schedule, too."""
    orders = [rng.permutation(45) for _ in range(6)]
    left = iter(orders)

    def order(n_rows):
        assert n_rows == 45
        return next(left)

    recipe = replace(RECIPE, steps_per_epoch=2, keep="last", schedule="cosine")
    start = [draw_variables(small(), 3)]
    job = job_of(1, recipe, model=small, permutations=[order], start=start)
    (found,) = train(job, data)
    assert found.n_epochs == 6 and next(left, None) is None
    rows = np.concatenate([order[:32] for order in orders])
    long = replace(recipe, steps_per_epoch=None, epochs=1)
    options = {"splits": [(rows, None)], "permutations": [np.arange], "recipes": [long]}
    (expected,) = train(replace(job, **options), data)
    assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=1e-5)
    assert_allclose(found.history["loss"].mean(), expected.history["loss"][0], rtol=1e-4)
    assert_allclose(found.history["val_loss"][-1], expected.history["val_loss"][0], rtol=1e-4)


def test_rows_of_an_epoch_are_drawn_anew_without_repeats_or_are_all_rows(data):
    splits = [(np.arange(45) + 100 * k, np.arange(3)) for k in range(2)]
    job = job_of(2, replace(RECIPE, steps_per_epoch=2), splits=splits)
    key = SimpleNamespace(epochs_per_call=200, n_steps=2, batch_size=16, n_members=2)
    orders = _job.HostStreams(job).orders(key, 200, n_rows=45, n_train=32)
    assert orders.shape == (200, 2, 32)
    for k in range(2):
        rows = orders[:, k] - 100 * k
        assert all(len(set(epoch)) == 32 for epoch in rows)
        assert_allclose(np.bincount(rows.ravel()), [200 * 32 / 45] * 45, rtol=0.25)
        assert np.bincount(rows[:, 0], minlength=45).max() < 20  # and in any order
    assert (orders[0, 0] != orders[0, 1] - 100).any()
    job = job_of(2)
    limited = replace(job, recipes=[replace(RECIPE, steps_per_epoch=3)] * 2)
    assert_equal_members(train(limited, data), train(job, data))


def test_stacks_keep_the_epoch_and_the_temperature_that_are_best_for_all(data):
    recipe = replace(RECIPE, learning_rate=0.05, epochs=60, optimizer="rmsprop")
    job = job_of(3, recipe, model=small, splits=THIRDS)

    def with_recipe(**changes):
        return train(replace(job, recipes=[replace(recipe, **changes)] * 3), data)

    alone, jointly = train(job, data), with_recipe(keep="best-jointly")
    losses = np.stack([member.history["val_loss"] for member in jointly])
    assert_array_equal(losses, [member.history["val_loss"] for member in alone])
    best = losses.mean(axis=0).argmin()
    assert [member.best_epoch for member in jointly] == [best] * 3
    assert (losses.argmin(axis=1) != best).any() and best < 59
    for found, expected in zip(jointly, with_recipe(epochs=best + 1, keep="last")):
        assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=1e-6)
    y = (data.y > np.median(data.y)).astype("float32")
    y[::4] = 1 - y[::4]  # noise, of which networks become too sure
    data, head = replace(data, y=y), CategoricalHead(2)
    recipe = replace(RECIPE, learning_rate=0.05, epochs=25, keep="best-calibrated")
    plain = functools.partial(sequential, (3,), layers.Dense(9, "tanh"), layers.Dense(2))
    job = job_of(3, recipe, model=plain, head=head, splits=THIRDS)
    found = train(job, data)
    last = train(replace(job, recipes=(replace(recipe, keep="last"),) * 3), data)
    temperatures = np.geomspace(0.6, 4, 9)

    def loss(member, rows, temperature):
        return head.scores(y[rows], member.held_out / temperature) @ data.weight[rows] / 30

    pairs = [(member, rows) for member, (_, rows) in zip(last, THIRDS)]
    losses = np.array([[loss(*pair, t) for pair in pairs] for t in temperatures])
    best = (losses.mean(axis=1) + 12.5 * np.log(temperatures) ** 2 / 90).argmin()
    assert temperatures[best] > 1.5
    assert_allclose([m.history["val_loss"][-1] for m in found], losses[best], rtol=1e-4)
    mean = np.mean([m.history["val_loss"] for m in found], axis=0)
    assert [m.best_epoch for m in found] == [mean.argmin()] * 3


@cases(
    ("losses", "ended"),
    ([[5, 3], [3, 5], [4.2, 4.1]], False),  # worse, by less than the members differ
    ([[5, 3], [3, 5], [7, 5], [5, 7]], True),  # the best epochs: (7, 5) - (5, 3)
    ([[5, 3], [3, 5], [4.9, 3.0]], False),  # better
    ([[5, 3, np.nan], [3, 5, np.nan], [7, 5.1, np.nan]], True),  # a member that diverged
    ([[5, np.nan], [3, np.nan], [7, np.nan]], False),  # one member has no standard error
)
def test_a_cycle_that_is_worse_by_more_than_a_standard_error_ends_the_training(losses, ended):
    """Compare with a paired test of SciPy: its statistic is above 1."""
    run = SimpleNamespace(n_epochs=len(losses), key=SimpleNamespace(n_valid=3))
    rows = np.asarray(losses, dtype=float)
    run._history = [np.stack([rows + 9, rows, rows], axis=1)]
    assert TrainingRun._cycle_was_worse(run, 2) is ended
    assert not TrainingRun._cycle_was_worse(run, 0)  # none before


def test_training_by_cycles_ends_with_a_cycle_and_keeps_the_same_weights(data):
    """Noise is learnt by heart in the second cycle at the latest, and what is exact to the end."""
    recipe = replace(RECIPE, learning_rate=0.1, epochs=60, schedule="coslog4", keep="best-jointly")
    assert recipe.cycle_ends(60) == [4, 12, 28, 60] and RECIPE.cycle_ends(6) == [6]
    recipes = [replace(recipe, early_stopping_patience=value) for value in ("cycle", None)]
    plain = functools.partial(sequential, (3,), layers.Dense(30, "tanh"), layers.Dense(2))
    y = np.random.default_rng(0).normal(size=data.y.shape).astype("float32")
    job = job_of(3, model=plain, splits=THIRDS)
    for rows, n_epochs in ((replace(data, y=y), {12, 28}), (replace(data, y=data.x[:, :1]), {60})):
        short, whole = (train(replace(job, recipes=[r] * 3), rows) for r in recipes)
        assert {member.n_epochs for member in short} <= n_epochs
        for found, expected in zip(short, whole):
            assert found.best_epoch == expected.best_epoch and expected.n_epochs == 60
            assert_array_equal(found.weights, expected.weights)
    # One that is planned shorter has the same cycles, but for the last one.
    noise, exact = replace(data, y=y), replace(data, y=data.x[:, :1])
    for rows, n_planned, share in ((noise, 30, 1.0), (exact, 30, 0.5), (exact, 4, 4 / 60)):
        run = TrainingRun(replace(job, recipes=recipes[:1] * 3, share=n_planned / 60), rows)
        run.advance()
        assert run.share == share and run.n_epochs == n_planned or share == 1
        whole = train(replace(job, recipes=recipes[1:] * 3), rows)
        for found, expected in zip(run.members(), whole):
            same = min(28, run.n_epochs)
            assert_array_equal(found.history["loss"][:same], expected.history["loss"][:same])
    steps = np.arange(20 * 3)
    scheduled, total = recipes[0].scheduled_steps(steps, 20, 3)  # the third cycle has 8 epochs
    assert_array_equal(scheduled[:36], steps[:36])
    assert_allclose(scheduled[36:], 36 + 2 * np.arange(24))
    assert total == 60 * 3 and recipes[1].scheduled_steps(steps, 20, 3) == (steps, 60)
    alone = [replace(r, keep="best") for r in recipes]  # members that keep epochs of their own
    assert train(replace(job, recipes=alone[:1] * 3), data)[0].n_epochs == 60
    with pytest.raises(ValueError, match="early_stopping_patience='cycle'"):
        replace(job, recipes=[*recipes, recipe])


# Its plateaus and its early stopping come within the run.
PATIENCE = {"reduce_lr_patience": 2, "reduce_lr_factor": 0.5, "early_stopping_patience": 6}
ENDING = {"schedule": "cosine", "weight_decay": 0.01, "clip_norm": 1.0, **PATIENCE}
ENDING = Recipe("nadam", 0.05, batch_size=16, epochs=30, **ENDING)


def uniform(n, rng):
    return rng.uniform(-1, 1, (n, 3))


def job_of_kind(kind, stacked, jit):
    seeds, options = [1, 2, 3] if stacked else [1], {"stacked": stacked, "jit": jit}
    if kind == "nomu":
        settings = (("pi_sqr", 0.1), ("pi_exp", 0.5), ("c_exp", 3.0))
        recipe = replace(ENDING, n_artificial=5, loss_settings=settings)
        network = build_nomu((3,), 1, hidden_units=(8,), side_hidden_units=(6,))
        options["artificial"] = uniform
        return TrainingJob.of_model(network, NomuHead(), recipe, seeds, **options)
    if kind == "epinet":
        base = EncoderDecoder(2, 1, 1, (6,), 4, "split", (5,))
        network = EpistemicNetwork(base, 1, EpiNetLayers(base.n_features, 1, 3, (6,), (4,), 0.75))
        recipe = replace(ENDING, n_draws=4)
        return TrainingJob.of_model(network, OperatorHead(1), recipe, seeds, **options)
    model = noisy() if kind == "noisy" else unplanned()
    return TrainingJob.of_model(model, HEAD, ENDING, seeds, **options)


@cases(
    ("kind", "stacked", "jit"),
    *(("noisy", True, False), ("unplanned", False, False)),
    *(("nomu", False, False), ("epinet", True, False)),
    *((kind, True, True) for kind in ("noisy", "unplanned", "nomu", "epinet")),
    quick=4,
)
def test_a_run_in_parts_ends_with_the_same_bits(data, kind, stacked, jit):
    job = job_of_kind(kind, stacked, jit)
    whole = train(job, data)
    assert max(member.n_epochs for member in whole) > 7
    run, n_parts = TrainingRun(pickle.loads(pickle.dumps(job)), data), 1  # sent elsewhere, say
    run.advance(5)
    assert run.n_epochs == 5
    while run.share < 1:
        run.advance(4)
        n_parts += 1
    assert n_parts > 2
    assert_equal_members(run.members(), whole)


@pytest.mark.parametrize("n_epochs", [1, 4])
def test_seconds_do_not_contain_compilation(data, monkeypatch, n_epochs):
    clock = iter(np.cumsum([0.0, 90.0, 1.0, 2.0, 0.0, 2.0, 0.0, 3.0]).tolist())
    job = job_of_kind("noisy", False, False)
    job = replace(job, recipes=tuple(replace(r, epochs=n_epochs) for r in job.recipes))
    run = TrainingRun(job, data)
    monkeypatch.setattr("skuq.training._train.time.perf_counter", lambda: next(clock))
    for _ in range(n_epochs):
        run.advance(1)
    # The first epoch compiles for 90 s. It counts as the mean of the others, or whole if alone.
    assert run.members()[0].seconds == pytest.approx({1: 90.0, 4: 7.0 + 7.0 / 3}[n_epochs])


def test_a_job_needs_no_model_but_the_values_of_frozen_layers(data, monkeypatch):
    """Its configuration is enough, in a process that has never seen the network."""
    for kind in ("unplanned", "epinet"):
        job = job_of_kind(kind, kind == "epinet", False)
        expected = train(job, data)
        monkeypatch.setattr(_job, "_templates", BoundedCache(8))
        sent = TrainingJob(job.network, job.head, job.recipes, job.seeds, job.stacked, jit=False)
        assert_equal_members(train(sent, data), expected)
    model = sequential((3,), layers.Dense(9, "relu"), layers.Dense(2))
    model.layers[0].trainable = False
    kernel, values = model.layers[0].kernel, np.linspace(-1, 1, 27, dtype="float32").reshape(3, 9)
    kernel.assign(values)
    job = TrainingJob.of_model(model, HEAD, Recipe(epochs=1), [1])
    kernel.assign(np.zeros((3, 9)))
    monkeypatch.setattr(_job, "_templates", BoundedCache(8))
    (member,) = train(pickle.loads(pickle.dumps(job)), data)
    assert_array_equal(next(part for part in member.state if part.shape == (3, 9)), values)
    with pytest.raises(ValueError, match="frozen layers.*`TrainingJob.of_model`"):
        train(TrainingJob(job.network, HEAD, Recipe(epochs=1), [1]), data)


@cases(
    ("fields", "message"),
    ({"stacked": False}, "one entry unless `stacked=True`"),
    ({"start": []}, r"`start` must have one entry for each seed \(2\). Got 0"),
    ({"recipes": [Recipe()] * 3}, r"`recipes` must have one entry for each seed \(2\). Got 3"),
    ({"recipes": [Recipe(epochs=2), Recipe(epochs=3)]}, "must have the same `epochs`"),
    ({"recipes": [Recipe(dropout=0.1), Recipe()]}, "have dropout=None, or none"),
    ({"recipes": [Recipe(loss_settings=(("crps", 0.5),)), Recipe()]}, "loss_settings"),
    # What does not suit a network that runs through Keras, or this head.
    (Recipe(dropout=0.1), "recipe's `dropout` .* through Keras"),
    (Recipe(dropout_schedule="flat-cosine"), "dropout_schedule='flat-cosine' cannot be used"),
    (Recipe(keep="best-calibrated"), "needs logits of classes"),
    (Recipe(rate_factors_of_layers={"hiden_1": 0.1}), r"match no weight .*: \['hiden_1'\]"),
)
def test_what_is_no_job_is_refused(data, fields, message):
    given = {"network": "", "head": HEAD, "recipes": Recipe(), "seeds": [1, 2], "stacked": True}
    with pytest.raises(ValueError, match=message):
        if isinstance(fields, Recipe):
            TrainingRun(TrainingJob.of_model(unplanned(), HEAD, fields, [1]), data)
        TrainingJob(**{**given, **fields})


def test_schedules_are_keras_own_and_have_a_warmup_and_rates_of_epochs():
    schedules, steps = keras.optimizers.schedules, np.arange(50)
    cosine = schedules.CosineDecay(1.0, decay_steps=50, alpha=0.1)
    exponential = schedules.ExponentialDecay(1.0, decay_steps=50, decay_rate=0.1)
    half = schedules.CosineDecay(1.0, decay_steps=25)  # in the second half, to 0
    flat = "flat-cosine", lambda step: half(max(step - 25, 0))
    for name, theirs in (("cosine", cosine), ("exponential", exponential), flat):
        recipe = Recipe(schedule=name, final_lr_factor=0.1)
        expected = [float(theirs(step)) for step in steps]
        assert_allclose(recipe.rate_factors(np.arange(50), 50), expected, rtol=1e-5, atol=1e-7)
        # A run in slices goes on where it was.
        assert_allclose(recipe.rate_factors(np.arange(30, 40), 50), expected[30:40], rtol=1e-5)
    factors = Recipe(warmup=0.2, schedule="cosine").rate_factors(np.arange(50), 50)
    assert_allclose(factors[:10], np.arange(1, 11) / 10)
    assert factors.argmax() in (9, 10) and (np.diff(factors[10:]) < 0).all() and factors[-1] < 0.02
    assert_array_equal(Recipe().rate_factors(np.arange(3, 7), 100), np.ones(4))
    recipe = Recipe(epochs=5, schedule="cosine", epoch_rates=[1.0, 0.5, 0.1])
    plain = Recipe(epochs=5, schedule="cosine").rate_factors(np.arange(35), 35)
    expected = plain * np.repeat([1, 0.5, 0.1, 0.1, 0.1], 7)
    assert_allclose(recipe.rate_factors(np.arange(35), 35), expected)
    assert_allclose(recipe.rate_factors(np.arange(14, 28), 35), expected[14:28])
    assert recipe == Recipe(epochs=5, schedule="cosine", epoch_rates=(1.0, 0.5, 0.1))
    expected = Recipe(schedule="flat-cosine").rate_factors(np.arange(40), 40)
    for name in ("weight_decay", "dropout"):  # they have schedules of their own alone
        recipe = Recipe(**{f"{name}_schedule": "flat-cosine"}, warmup=0.5, epoch_rates=[3.0])
        assert_allclose(recipe.regularization_factors(name, np.arange(40), 40), expected)
        assert_allclose(recipe.regularization_factors(name, np.arange(30, 40), 40), expected[30:])
        assert_allclose(Recipe().regularization_factors(name, np.arange(3, 7), 10), 1)


#: Values that are refused, by the names of fields.
BAD = {
    "optimizer schedule keep": ["linear"],
    "batch_size early_stopping_patience steps_per_epoch": [0],
    "learning_rate l2 adversarial_epsilon": [-1.0],
    "clip_norm final_lr_factor epsilon": [0.0],
    "dropout momentum beta_2": [1.0],
    "weight_decay_schedule dropout_schedule": ["coslog4"],
    "epochs steps_per_epoch warmup": [2.5],
    "epoch_rates": [[-1.0], [np.nan], ["a"], 3.0],
    "weight_decay": [np.inf],
    "rate_factors_of_layers": [{"scale": -1}, {"scale": "s"}, 3],
}


def test_bad_recipes_are_refused_and_factors_of_layers_go_by_name():
    given = [(name, value) for names in BAD for name in names.split() for value in BAD[names]]
    for name, value in given:
        with pytest.raises(ValueError, match=rf"[`']{name}[`'].*Got"):
            Recipe(**{name: value})
    for optimizer, setting, message in (
        ("adam", {"momentum": 0.5}, "can only be set with optimizer=\"sgd\". Got 'adam'"),
        ("rmsprop", {"beta_2": 0.95}, "optimizers adam, adamax and nadam. Got 'rmsprop'"),
        ("sgd", {"epsilon": 1e-8}, "`epsilon` has no effect .* Got 1e-08"),
    ):
        with pytest.raises(ValueError, match=message):
            Recipe(optimizer, **setting)
    factors = {"scale": 6, "embedding": 0.1, "*/bias": 0.5, "hidden_*": 2}
    recipe = Recipe(rate_factors_of_layers=factors)
    assert recipe == Recipe(rate_factors_of_layers=tuple(factors.items()))
    assert hash(recipe) == hash(Recipe(rate_factors_of_layers=list(factors.items())))
    names = ["embedding/bias", "scale/scale", "hidden_1/kernel", "hidden_1/bias", "output/kernel"]
    assert recipe.factors_of(names) == [0.1, 6, 2, 0.5, 1]
    nested = Recipe(rate_factors_of_layers={"branch_1": 3.0, "hidden": 4.0})
    assert nested.factors_of(["branch_1/hidden/kernel", "hidden/kernel"]) == [3, 4]
    with pytest.raises(ValueError, match=r"that match no weight of the network: \['hidden'\]"):
        nested.factors_of(["branch_1/hidden/kernel"])


@pytest.fixture(params=["one split", "folds"])
def trainer(request):
    data, head = make_data(), GaussianHead()
    if request.param == "one split":
        return MemberTrainer(TinySpace(), data, head, EPOCHS)
    data = TrainingData.without_validation(data.x, data.y, data.weight)
    return MemberTrainer(TinySpace(), data, head, EPOCHS, folds=list(KFold(5).split(data.x)))


@cases(
    ("changes", "expected"),
    ({"learning_rate": 0.2}, True),
    ({"frequency_scale": 3.0}, False),  # another network
    ({"loss": "nll"}, True),  # the losses have weights, which members do not share
    ({"dropout": 0.1}, False),  # another program
)
def test_only_equal_networks_train_together(changes, expected):
    trainer, default = tabular_trainer()
    jobs = [trainer.jobs(c, 0)[0][0] for c in (default, {**default, **changes})]
    assert can_stack(*jobs) is expected
    jointly = replace(jobs[0], recipes=replace(jobs[0].recipe, keep="best-jointly"))
    assert not can_stack(jointly, jointly)  # each trial keeps an epoch of its own


def tabular_trainer():
    """A trainer of configurations that decide about the loss, and the default one."""
    data = make_data()
    space = bound_tabular_space(data.x, decides_loss=True)
    default = {name: value for part in space.decisions() for name, value in part.default().items()}
    return MemberTrainer(space, data, GaussianMixtureHead(), EPOCHS, max_epochs=4), default


def test_a_budget_without_limits_changes_nothing_and_an_objective_replaces_the_score(trainer):
    plain, outcome = trainer(CONFIGURATION, 3), trainer(CONFIGURATION, 3, TrialBudget())
    limited = pickle.loads(pickle.dumps(replace(trainer, timeout=60.0)))
    assert limited.timeout == 60.0 and limited(CONFIGURATION, 3).score == plain.score
    assert not any("deadline" in name for name in vars(limited))  # time counts from the call
    assert (outcome.score, outcome.share) == (plain.score, 1.0)
    for one, other in zip(outcome.result.networks, plain.networks):
        assert_array_equal(one.weights, other.weights)
        assert_array_equal(one.history["val_loss"], other.history["val_loss"])
    priced = replace(trainer, objective=lambda trial: trial.score + 1e-3 * trial.n_weights)
    outcome = priced(CONFIGURATION, 3, TrialBudget())
    assert outcome.result.n_weights == len(outcome.result.networks) * ((3 + 1) * 8 + (8 + 1) * 2)
    assert outcome.score == outcome.result.score + 1e-3 * outcome.result.n_weights


def test_trials_side_by_side_are_those_alone_and_one_that_diverges_is_no_loss(trainer):
    changes = ({}, {"learning_rate": 1e30}, {"units": 5}, {})
    configurations = [{**CONFIGURATION, **change} for change in changes]
    outcomes = trainer.together(configurations, range(4), TrialBudget())
    assert isinstance(outcomes.pop(1), FloatingPointError)
    for outcome, k in zip(outcomes, (0, 2, 3)):
        alone = trainer(configurations[k], k, TrialBudget())
        assert outcome.score == pytest.approx(alone.score, rel=1e-4)
        for one, other in zip(outcome.result.networks, alone.result.networks, strict=True):
            assert_allclose(one.weights, other.weights, rtol=1e-3, atol=1e-4)
    broken = replace(trainer, objective=lambda trial: trial.scor)
    outcomes = broken.together(configurations[:2], (0, 1), TrialBudget())
    assert [type(outcome) for outcome in outcomes] == [ValueError, FloatingPointError]
    with pytest.raises(ValueError, match="`objective` raised AttributeError: .*'scor'"):
        broken(CONFIGURATION, 3, TrialBudget())


def test_a_shortened_training_leaves_time_for_its_predictions(trainer, monkeypatch):
    """With folds each network predicts its own rows, and for the moments those of all folds."""

    seen = []

    def plan(jobs, deadline, n_passes):
        seen.append((n_passes, deadline))
        return [(replace(job, share=0.5), data) for job, data in jobs], np.inf, 1.0

    monkeypatch.setattr("skuq.estimators.methods._trial_trainer.plan_epochs", plan)
    began = time.monotonic()
    assert trainer(CONFIGURATION, 3, TrialBudget(seconds=100.0)).share == 0.5
    n_passes = 1 if trainer.folds is None else 6
    assert seen == [(n_passes, pytest.approx(began + 100, abs=5))]


def test_a_trial_ends_when_its_time_is_over_with_a_network(trainer):
    """Its objective sees the seconds of a full training."""
    seen = []
    long = replace(trainer, epochs=10**6, objective=lambda trial: seen.append(trial.seconds) or 0)
    outcome = long(CONFIGURATION, 3, TrialBudget(seconds=0.05, shorten=False))
    assert outcome.result.n_epochs < 10**6
    assert outcome.share * 10**6 == pytest.approx(outcome.result.n_epochs, rel=0.5)
    assert seen == [pytest.approx(outcome.result.seconds / outcome.share)]
    # Without time there is still a network.
    outcome = trainer(CONFIGURATION, 3, TrialBudget(seconds=1e-3))
    assert outcome.result.n_epochs == 1 and outcome.share < 0.1


@pytest.mark.parametrize("loss", ["crps", "nll"])
def test_trials_of_every_loss_are_scored_alike(loss):
    trainer, default = tabular_trainer()
    assert default["loss"] == "crps"
    configuration, data, head = {**default, "loss": loss}, trainer.data, trainer.head
    outcome = trainer(configuration, 0, TrialBudget())
    ((job, _),) = trainer.jobs(configuration, 0)
    assert job.head.weighs_losses and job.recipe.loss_settings == (("crps", float(loss == "crps")),)
    likelihood = head.log_likelihood(data.y_valid.astype(float), outcome.result.held_out)
    assert_allclose(outcome.score, -np.average(likelihood, weights=data.weight_valid), rtol=1e-6)
    # Each keeps the epoch of the lowest CRPS.
    assert outcome.score != pytest.approx(outcome.result.score, rel=1e-4)


def test_the_time_of_a_stack_is_that_of_all_its_members(trainer, monkeypatch):
    def train_for_ever(jobs, cancelled, deadline):
        while not cancelled():
            pass
        raise InterruptedError

    monkeypatch.setattr("skuq.estimators.methods._trial_trainer.train_jointly", train_for_ever)
    clock, ended, trainer = itertools.count(), [], replace(trainer, timeout=60.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    for n, message in ((1, "The trial took"), (30, "30 trials together took")):
        first = next(clock)
        with pytest.raises(TimeoutError, match=message):
            trainer.together([CONFIGURATION] * n, list(range(n)))
        ended.append(next(clock) - first)
    assert ended[1] - ended[0] == 29 * 60
