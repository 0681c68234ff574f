"""Trials with a budget: the time to fit into."""

import itertools
import pickle
import time
from dataclasses import replace

import numpy as np
import pytest
from heads import GaussianMixtureHead, bound_tabular_space
from numpy.testing import assert_allclose, assert_array_equal
from small_models import TinySpace
from tiers import cases
from training_data import MemberTrainer, Rows, TrialBudget, TrialOutcome, make_data, make_splits

from skuq.networks import GaussianHead
from skuq.tables import TrainingData

CONFIGURATION = {"units": 8, "activation": "tanh", "learning_rate": 0.03, "batch_size": 16}
EPOCHS = 20


@pytest.fixture(params=["one split", "folds"])
def trainer(request):
    data, head = make_data(), GaussianHead()
    if request.param == "one split":
        return MemberTrainer(TinySpace(), data, head, EPOCHS)
    x, y, weight = data.x, data.y, data.weight
    folds = make_splits(Rows(x, y, weight), 0, cv=5).parts
    data = TrainingData.without_validation(x, y, weight)
    return MemberTrainer(TinySpace(), data, head, EPOCHS, folds=folds)


@cases(
    ("changes", "expected"),
    ({"learning_rate": 0.2}, True),
    ({"frequency_scale": 3.0}, False),  # another network
    ({"loss": "nll"}, True),  # the losses have weights, which members do not share
    ({"dropout": 0.1}, False),  # another program
)
def test_only_equal_networks_train_together(changes, expected):
    trainer, default = tabular_trainer()
    assert trainer.can_train_together([default, default, {**default, **changes}]) is expected


def tabular_trainer(**changes):
    """A trainer of configurations that decide about the loss, and the default one."""
    data = make_data()
    space = bound_tabular_space(data.x, decides_loss=True)
    default = {name: value for part in space.decisions() for name, value in part.default().items()}
    return MemberTrainer(space, data, GaussianMixtureHead(), EPOCHS, max_epochs=4), default


def test_a_budget_without_limits_changes_nothing(trainer):
    plain = trainer(CONFIGURATION, 3)
    outcome = trainer(CONFIGURATION, 3, TrialBudget())
    limited = pickle.loads(pickle.dumps(replace(trainer, timeout=60.0)))
    assert limited.timeout == 60.0 and limited(CONFIGURATION, 3).score == plain.score
    assert not any("deadline" in name for name in vars(limited))  # time counts from the call
    assert isinstance(outcome, TrialOutcome)
    assert (outcome.score, outcome.share) == (plain.score, 1.0)
    for one, other in zip(outcome.result.networks, plain.networks):
        assert_array_equal(one.weights, other.weights)
        assert_array_equal(one.history["val_loss"], other.history["val_loss"])


def test_a_shortened_training_leaves_time_for_its_predictions(trainer, monkeypatch):
    """With folds each network predicts its own rows, and for the moments those of all folds."""
    times = []

    def share_in_time(needed, seconds):
        times.append((needed, seconds))
        return 0.1

    def plan(jobs, deadline):
        assert deadline > time.monotonic() + 90
        return 1.0, 2.0, [job for job, _ in jobs]

    monkeypatch.setattr("skuq.estimators.methods._trial_trainer.seconds_needed", plan)
    monkeypatch.setattr("skuq.estimators.methods._trial_trainer.share_in_time", share_in_time)
    trainer(CONFIGURATION, 3, TrialBudget(seconds=100.0))
    of_result = 2.0 if trainer.folds is None else 12.0
    assert times[0] == (1.0, pytest.approx(100 - of_result, abs=1))


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


def test_an_objective_replaces_the_score_and_is_named_in_its_errors(trainer):
    priced = replace(trainer, objective=lambda trial: trial.score + 1e-3 * trial.n_weights)
    outcome = priced(CONFIGURATION, 3, TrialBudget())
    n_networks = len(outcome.result.networks)
    assert outcome.result.n_weights == n_networks * ((3 + 1) * 8 + (8 + 1) * 2)
    assert outcome.score == outcome.result.score + 1e-3 * outcome.result.n_weights
    broken = replace(trainer, objective=lambda trial: trial.scor)
    with pytest.raises(ValueError, match="`objective` raised AttributeError: .*'scor'"):
        broken(CONFIGURATION, 3, TrialBudget())


@pytest.mark.parametrize("loss", ["crps", "nll"])
def test_trials_of_every_loss_are_scored_alike(loss):
    trainer, default = tabular_trainer()
    assert default["loss"] == "crps"
    configuration, data, head = {**default, "loss": loss}, trainer.data, trainer.head
    outcome = trainer(configuration, 0, TrialBudget())
    ((job, _),) = trainer.jobs(configuration, 0)
    assert job.head.weighs_losses
    assert job.recipe.loss_settings == (("crps", float(loss == "crps")),)
    likelihood = head.log_likelihood(data.y_valid.astype(float), outcome.result.held_out)
    assert_allclose(outcome.score, -np.average(likelihood, weights=data.weight_valid), rtol=1e-6)
    # Each keeps the epoch of the lowest CRPS.
    assert outcome.score != pytest.approx(outcome.result.score, rel=1e-4)


def test_the_time_of_a_stack_is_that_of_all_its_members(trainer, monkeypatch):
    def train_for_ever(job, data, cancelled):
        while not cancelled():
            pass
        raise InterruptedError

    monkeypatch.setattr("skuq.estimators.methods._trial_trainer.train", train_for_ever)
    clock, ended, trainer = itertools.count(), [], replace(trainer, timeout=60.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    for n, message in ((1, "The trial took"), (30, "30 trials together took")):
        first = next(clock)
        with pytest.raises(TimeoutError, match=message):
            trainer.train_together([CONFIGURATION] * n, list(range(n)))
        ended.append(next(clock) - first)
    assert ended[1] - ended[0] == 29 * 60
