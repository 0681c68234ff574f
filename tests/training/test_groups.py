"""Large stacks train in groups at the same time; limits of time; epochs of some of the rows."""

import functools
import math
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from heads import CategoricalHead
from numpy.testing import assert_allclose, assert_array_equal
from plans import draw_variables, sequential
from tiers import cases, slow_after
from training_data import STEADY, make_data, train_member

from skuq import backend
from skuq.backend import keras
from skuq.networks import GaussianHead
from skuq.networks._plan import without_names
from skuq.training import Recipe, TrainingJob, TrainingRun, _train, train
from skuq.training import _job as _arguments

layers = keras.layers
HEAD = GaussianHead()
RECIPE = Recipe(learning_rate=0.02, batch_size=16, epochs=6, **STEADY)
LONG = replace(RECIPE, epochs=10**6)


@pytest.fixture(scope="module")
def data():
    return make_data()


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch):
    """Also on a machine of one core."""
    monkeypatch.setattr(backend, "n_programs_at_once", lambda: 2)


def network():
    noise = layers.BatchNormalization(momentum=0.8), layers.Dropout(0.2)
    return sequential((3,), layers.Dense(9, "tanh"), *noise, layers.Dense(2))


def unplanned():
    """Runs through Keras."""
    return sequential((3,), layers.Dense(9), layers.UnitNormalization(), layers.Dense(2))


def job_of(n_members, recipes=RECIPE, model=network, **fields):
    settings = {"stacked": True, "jit": False, **fields}
    return TrainingJob.of_model(model(), HEAD, recipes, range(1, n_members + 1), **settings)


def assert_equal_members(found, expected, exactly=True):
    assert len(found) == len(expected)
    for one, two in zip(found, expected):
        assert one.seed == two.seed and one.best_epoch == two.best_epoch
        check = assert_array_equal if exactly else functools.partial(assert_allclose, rtol=1e-4)
        for name in ("loss", "val_loss", "learning_rate"):
            check(one.history[name], two.history[name])
        if exactly:
            assert_array_equal(one.weights, two.weights)
            assert_array_equal(one.held_out, two.held_out)
        else:
            assert_allclose(one.weights, two.weights, atol=1e-4)


@pytest.mark.parametrize(
    ("n_members", "sizes"),
    [(1, [1]), (5, [5]), (7, [7]), (8, [4, 4]), (10, [5, 5]), (12, [4] * 3), (15, [5] * 3)],
)
def test_groups_are_of_equal_size_and_of_four_at_least(n_members, sizes):
    groups = job_of(n_members).groups()
    assert [len(group.seeds) for group in groups] == sizes
    seeds = [seed for group in groups for seed in group.seeds]
    assert seeds == list(range(1, n_members + 1))


def test_every_field_of_a_member_goes_with_it():
    n = 8
    recipes = [replace(RECIPE, learning_rate=0.01 * (k + 1)) for k in range(n)]
    splits = [(np.arange(k, k + 30), np.arange(3)) for k in range(n)]
    start = [draw_variables(network(), k) for k in range(n)]
    orders = [functools.partial(np.roll, np.arange(30), k) for k in range(n)]
    fields = {"splits": splits, "start": start, "permutations": orders, "held_out": np.ones((2, 3))}
    job = job_of(n, recipes, **fields)
    first, second = job.groups()
    for group, members in ((first, slice(0, 4)), (second, slice(4, 8))):
        assert group.recipes == tuple(recipes[members]) and group.seeds == job.seeds[members]
        for name in ("splits", "start", "permutations"):
            found, given = getattr(group, name), getattr(job, name)[members]
            assert all(one is two for one, two in zip(found, given)) and len(found) == 4
        assert group.held_out is job.held_out and group.network == job.network
        assert group.head is job.head and group.stacked and group.jit is False


@pytest.mark.parametrize(("n_members", "jit"), [(4, False), (8, False), (12, True)])
def test_the_choice_of_xla_counts_the_groups_that_train_in_turn(data, n_members, jit):
    """They share one program, which is compiled once. Two groups train at the same time."""
    n_steps = math.ceil(len(data.x) / RECIPE.batch_size)
    recipe = replace(RECIPE, epochs=5000 // n_steps)  # XLA saves 0.75 s and takes 1.2 s to compile
    groups = job_of(n_members, recipe, jit=None).groups()
    assert {TrainingRun(group, data).jit for group in groups} == {jit}


@pytest.mark.slow
@pytest.mark.parametrize("model, jit", [(network, False), (network, True), (unplanned, False)])
def test_members_are_those_of_smaller_stacks_and_of_single_runs(data, model, jit):
    recipes = [replace(RECIPE, learning_rate=0.005 * (k + 1)) for k in range(8)]
    network = model()
    job = job_of(8, recipes, model=lambda: network, jit=jit)
    found = train(job, data)
    parts = [(recipes[half], job.seeds[half]) for half in (slice(0, 4), slice(4, 8))]
    halves = [replace(job, recipes=r, seeds=seeds, start=None) for r, seeds in parts]
    assert_equal_members(found, train(halves[0], data) + train(halves[1], data))
    for k in (2, 5):
        alone = train_member(network, HEAD, recipes[k], data, k + 1, jit=jit)
        assert_equal_members([found[k]], [alone], exactly=False)


def test_groups_run_at_the_same_time_in_threads_of_their_own(data):
    both, threads = threading.Barrier(2, timeout=60), set()

    def report(n_epochs, n_left):
        if len(threads) < 2:
            threads.add(threading.get_ident())
            both.wait()  # breaks unless two are here at once

    assert len(train(job_of(8), data, report=report)) == 8
    assert len(threads) == 2


def test_reports_count_the_epochs_of_groups_that_wait(data):
    reports = []
    train(job_of(12), data, report=lambda *numbers: reports.append(numbers))
    assert reports[0][1] >= 2 * RECIPE.epochs  # of three groups, two run at the same time
    assert sum(n for n, _ in reports) == 3 * RECIPE.epochs and reports[-1][1] == 0


class _Broken(TrainingRun):
    """A run whose second group fails, and whose first would never end by itself."""

    def advance(self, *args, cancelled=None, **settings):
        if 5 in self.job.seeds:
            raise OverflowError("the second group")
        while not cancelled():
            time.sleep(0.01)
        raise InterruptedError


def test_an_error_of_one_group_ends_the_others(data, monkeypatch):
    monkeypatch.setattr("skuq.training._train.TrainingRun", _Broken)
    with pytest.raises(OverflowError, match="the second group"):
        train(job_of(8), data)


def test_cancelled_groups_end_at_the_next_slice(data):
    with pytest.raises(InterruptedError, match="cancelled"):
        train(job_of(8, LONG), data, cancelled=lambda: True)
    asked = []

    def later():
        asked.append(1)
        return len(asked) > 4

    with pytest.raises(InterruptedError, match="cancelled"):
        train(job_of(8, LONG), data, cancelled=later)
    assert len(asked) < 30


def test_an_interrupt_ends_all_groups(data):
    """Ctrl-C arrives in the main thread, which only waits."""
    running = threading.Event()

    def interrupt():
        running.wait(600)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    n_threads = threading.active_count()
    # Tests that run in the background of a shell ignore SIGINT otherwise.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            train(job_of(8, LONG), data, report=lambda *numbers: running.set())
    finally:
        running.set()
        thread.join()
        signal.signal(signal.SIGINT, handler)
    assert threading.active_count() <= n_threads  # none goes on in the background


@pytest.mark.parametrize("n_members", [1, 8])
def test_a_deadline_that_has_passed_leaves_a_first_epoch(data, n_members):
    job = job_of(n_members, replace(RECIPE, epochs=1000))
    members = train(job, data, deadline=time.monotonic() - 1)
    assert len(members) == n_members
    (one,) = train(job_of(1, replace(RECIPE, epochs=1)), data)
    for member in members:
        # A slice is of one epoch until it is known how long they take.
        assert member.n_epochs == 1 and member.best_epoch == 0
        assert np.isfinite(member.weights).all() and len(member.held_out) == 20
    assert_allclose(members[0].weights, one.weights, rtol=1e-4, atol=1e-5)


def test_no_slice_begins_that_would_end_after_the_deadline(data, monkeypatch):
    now = 0.0

    def tick():  # twice a slice, which takes 5 s of 10
        nonlocal now
        now += 5.0
        return now

    clock = SimpleNamespace(monotonic=lambda: now, perf_counter=tick)
    monkeypatch.setattr("skuq.training._train.time", clock)
    run = TrainingRun(job_of(1, LONG), data)
    run.advance(deadline=31.0)
    assert (run.n_epochs, now) == (3, 30.0)
    run.advance(deadline=34.0)
    assert run.n_epochs == 3
    run.advance(deadline=35.0)
    assert run.n_epochs == 4


def test_compiling_first_changes_no_member(data):
    runs = [TrainingRun(job_of(2, jit=jit), data) for jit in (False, False, True)]
    for run in runs[1:]:
        run.compile()
        assert run.is_compiled and run.share == 0
    for run in runs:
        run.advance()
    members = [run.members() for run in runs]
    assert_equal_members(members[1], members[0])
    assert_equal_members(members[2], members[0], exactly=False)


class FakeRun:
    """Training that only moves the clock: epochs of 2 s, 1.2 s with XLA, and their compilation."""

    now, compiled = 100.0, frozenset()
    compilations = {False: 0.0, True: 0.0}  # seconds, by `jit`
    to_predict = 0.0

    def __init__(self, job, data):
        self.jit = job.jit is not False
        self.n_left = job.recipe.epochs
        self.key = without_names(job.network), self.jit

    @property
    def is_compiled(self):
        return self.key in FakeRun.compiled

    def compile(self):
        FakeRun.now += 0.0 if self.is_compiled else self.compilations[self.jit]
        FakeRun.compiled |= {self.key}

    def advance(self, n_epochs, **settings):
        assert self.is_compiled
        if self.n_left:
            FakeRun.now += 1.2 if self.jit else 2.0
            self.n_left -= 1

    def members(self):
        FakeRun.now += self.to_predict


@pytest.fixture
def fake(monkeypatch):
    """`FakeRun` in the place of trainings, with a clock that begins at 100."""
    for name in ("now", "compiled", "compilations", "to_predict"):
        monkeypatch.setattr(FakeRun, name, getattr(FakeRun, name))
    monkeypatch.setattr("skuq.training._train.TrainingRun", FakeRun)
    clock = SimpleNamespace(monotonic=lambda: FakeRun.now)
    monkeypatch.setattr("skuq.training._train.time", clock)
    return FakeRun


@cases(
    ("seconds", "n_members", "n_at_once", "epochs"),
    (1e9, 4, 2, 50),  # never more than the recipe has
    (-9, 4, 2, 1),
    (40.0, 4, 2, 18),  # 0.9 * 40 / 2
    (40.0, 8, 2, 18),
    (40.0, 8, 1, 9),  # one group after the other
)
def test_shortened_jobs_have_the_epochs_that_there_is_time_for(
    data, monkeypatch, fake, seconds, n_members, n_at_once, epochs
):
    monkeypatch.setattr(backend, "n_programs_at_once", lambda: n_at_once)
    fake.compilations, fake.to_predict = {False: 7.0}, 0.5
    job = job_of(n_members, replace(RECIPE, epochs=50))
    n_groups = n_members // 4
    # The limit counts the compilation, the two epochs measured, and all predictions.
    (found,) = _train.shorten([job], data, 100 + 7 + 2 * 2 + 0.5 + 0.5 * n_groups + seconds)
    assert {recipe.epochs for recipe in found.recipes} == {epochs}
    assert found.seeds == job.seeds
    assert found.recipes == tuple(replace(recipe, epochs=epochs) for recipe in job.recipes)


def test_several_jobs_keep_the_same_share_of_their_epochs(data, fake):
    # The job with more epochs decides, each has a core.
    jobs = [job_of(4, replace(RECIPE, epochs=n)) for n in (100, 40)]
    found = _train.shorten(jobs, data, 100 + 2 * 4 + 0.5001 * 200 / 0.9)
    assert [job.recipe.epochs for job in found] == [50, 20]
    # Its second epoch, which would be timed, there is not.
    (found,) = _train.shorten([job_of(4, replace(RECIPE, epochs=1))], data, fake.now + 2.0)
    assert found.recipe.epochs == 1


@cases(("seconds", "jit"), (39.9, False), (40.0, True), (math.inf, True))
def test_little_time_is_for_a_plain_graph(data, fake, seconds, jit):
    jobs = [job_of(4, RECIPE, jit=None)] * 2  # of 20 s each
    found = _train.shorten(jobs, data, 100 + seconds)
    assert [job.jit for job in found] == [jit] * 2 and len(fake.compiled) == 1
    # A program that XLA has compiled is used, however little time is left.
    (again,) = _train.shorten(jobs[:1], data, fake.now + 1.0)
    assert again.jit is jit
    (later,) = _train.shorten(jobs[:1], data, fake.now + 1e4)
    assert later.jit is True


def test_kinds_that_would_begin_late_are_left_out(data, fake):
    fake.compilations = {False: 10.0}
    others = [functools.partial(sequential, (3,), layers.Dense(2, a)) for a in ("tanh", "relu")]
    models = [network, others[0], network, others[1]]
    jobs = [job_of(4, replace(RECIPE, epochs=50), model=model) for model in models]
    for seconds, n_jobs in ((-1.0, 1), (40.0, 1), (60.0, 2), (200.0, 4)):
        fake.now, fake.compiled = 100.0, frozenset()
        found = _train.shorten(jobs, data, 100 + seconds)
        assert [job.network for job in found] == [job.network for job in jobs[:n_jobs]]
    # Those that are compiled, too. Each takes two seconds to measure, or four of 32.
    for seconds, n_jobs in ((7.9, 1), (8.0, 2), (32.0, 3), (60.0, 4)):
        assert len(_train.shorten(jobs, data, fake.now + seconds)) == n_jobs


def test_jobs_trained_together_are_those_trained_alone(data):
    jobs = [job_of(8), job_of(3, replace(RECIPE, epochs=3), model=unplanned)]
    found = train(jobs, data)
    assert_equal_members(found, [member for job in jobs for member in train(job, data)])


@pytest.mark.parametrize("jit", slow_after(1, [False, True]))
def test_epochs_of_some_steps_train_on_the_first_rows_of_their_order(data, jit, rng):
    """Weights and average losses equal those of one long epoch of the same rows."""
    orders = [rng.permutation(45) for _ in range(6)]
    left = iter(orders)

    def order(n_rows):
        assert n_rows == 45
        return next(left)

    recipe = replace(RECIPE, steps_per_epoch=2, keep="last")
    options = {"start": [draw_variables(network(), 3)], "jit": jit}
    (found,) = train(job_of(1, recipe, permutations=[order], **options), data)
    assert found.n_epochs == 6 and next(left, None) is None
    rows = np.concatenate([order[:32] for order in orders])
    long = replace(recipe, steps_per_epoch=None, epochs=1)
    options |= {"splits": [(rows, None)], "permutations": [np.arange]}
    (expected,) = train(job_of(1, long, **options), data)
    assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=1e-5)
    assert_allclose(found.history["loss"].mean(), expected.history["loss"][0], rtol=1e-4)
    assert_allclose(found.history["val_loss"][-1], expected.history["val_loss"][0], rtol=1e-4)


def test_rows_of_an_epoch_are_drawn_anew_without_repeats():
    n_rows, n_train, n_epochs = 45, 32, 200
    splits = [(np.arange(45) + 100 * k, np.arange(3)) for k in range(2)]
    job = job_of(2, replace(RECIPE, steps_per_epoch=2), splits=splits)
    key = SimpleNamespace(epochs_per_call=n_epochs, n_steps=2, batch_size=16, n_members=2)
    orders = _arguments.HostStreams(job).orders(key, n_epochs, n_rows, n_train)
    assert orders.shape == (n_epochs, 2, 32)
    for k in range(2):
        rows = orders[:, k] - 100 * k
        assert (rows >= 0).all() and (rows < 45).all()
        assert all(len(set(epoch)) == 32 for epoch in rows)
        often = np.bincount(rows.ravel(), minlength=45)
        assert_allclose(often, n_epochs * 32 / 45, rtol=0.25)  # every row comes up
        first = np.bincount(rows[:, 0], minlength=45)
        assert first.max() < 20  # and in any order
    assert (orders[0, 0] != orders[0, 1] - 100).any()


@pytest.mark.parametrize("n_steps", [3, 1000])
def test_steps_for_more_rows_than_there_are_mean_all_rows(data, n_steps):
    whole = train(job_of(2), data)
    found = train(job_of(2, replace(RECIPE, steps_per_epoch=n_steps)), data)
    assert_equal_members(found, whole)
    fewer = train(job_of(2, replace(RECIPE, steps_per_epoch=2)), data)
    assert not np.array_equal(fewer[0].weights, whole[0].weights)


def test_schedules_go_by_the_steps_there_are(data):
    """The last of the recipe's steps has the last rate, however few an epoch has."""
    recipe = replace(RECIPE, optimizer="sgd", steps_per_epoch=1, schedule="cosine", epochs=4)
    long = replace(recipe, steps_per_epoch=None, epochs=1)
    options = {"start": [draw_variables(network(), 3)], "permutations": [np.arange]}
    (found,) = train(job_of(1, replace(recipe, keep="last"), **options), data)
    rows = np.tile(np.arange(16), 4)
    options |= {"splits": [(rows, None)]}
    (expected,) = train(job_of(1, replace(long, keep="last"), **options), data)
    assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=1e-6)


def test_stacks_keep_the_epoch_that_is_best_for_all(data):
    """The epoch of the least mean loss, and its weights."""
    splits = [(np.arange(45)[k::3], np.delete(np.arange(45), np.s_[k::3])) for k in range(3)]
    recipe = replace(RECIPE, learning_rate=0.05, epochs=60, optimizer="rmsprop")
    alone = train(job_of(3, recipe, splits=splits), data)
    jointly = train(job_of(3, replace(recipe, keep="best-jointly"), splits=splits), data)
    losses = np.stack([member.history["val_loss"] for member in jointly])
    assert_array_equal(losses, [member.history["val_loss"] for member in alone])
    best = losses.mean(axis=0).argmin()
    assert [member.best_epoch for member in jointly] == [best] * 3
    assert (losses.argmin(axis=1) != best).any() and best < 59
    last = replace(recipe, epochs=best + 1, keep="last")
    for found, expected in zip(jointly, train(job_of(3, last, splits=splits), data)):
        assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=1e-6)


def test_classes_are_validated_at_the_temperature_that_is_best_for_all(data):
    y = (data.y > np.median(data.y)).astype("float32")
    y[::4] = 1 - y[::4]  # noise, of which networks become too sure
    data = replace(data, y=y)
    splits = [(np.arange(45)[k::3], np.delete(np.arange(45), np.s_[k::3])) for k in range(3)]
    recipe = replace(RECIPE, learning_rate=0.05, epochs=25, keep="best-calibrated")
    job = TrainingJob.of_model(
        network(), CategoricalHead(2), recipe, range(3), stacked=True, splits=splits, jit=False
    )
    found = train(job, data)
    last = replace(recipe, keep="last")
    held_out = zip([m.held_out for m in train(replace(job, recipes=(last,) * 3), data)], splits)
    head, held_out = CategoricalHead(2), list(held_out)
    temperatures = np.geomspace(0.6, 4, 9)
    losses = np.array(
        [
            [head.scores(y[rows], z / t) @ data.weight[rows] / 30 for z, (_, rows) in held_out]
            for t in temperatures
        ]
    )
    best = (losses.mean(axis=1) + 12.5 * np.log(temperatures) ** 2 / 90).argmin()
    assert temperatures[best] > 1.5
    assert_allclose([m.history["val_loss"][-1] for m in found], losses[best], rtol=1e-4)
    mean = np.mean([m.history["val_loss"] for m in found], axis=0)
    assert [m.best_epoch for m in found] == [mean.argmin()] * 3
    with pytest.raises(ValueError, match="needs logits of classes"):
        train(job_of(3, recipe, splits=splits), data)
