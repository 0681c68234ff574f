from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import log_loss
from teams import likelihood_statistics

from skuq import AutoDEUQClassifier
from skuq.ensembles import Selection, select_forward

pytestmark = pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")


def tiny(space, n_trials=4, **settings):
    settings = {"n_members": 3, "epochs": 20, "space": space, "random_state": 0, **settings}
    return AutoDEUQClassifier(n_trials, **settings)


def test_greedy_selection_with_repeats_by_the_classes_likelihood(tiny_space, iris):
    X, y = iris
    model = tiny(tiny_space).fit(X[:100], y[:100], validation_data=(X[100:], y[100:]))
    pool = [one for _, one in model.member_estimators(every_trial=True)]
    likelihood = np.array([one.log_prob(X[100:], y[100:]) for one in pool])
    settings = {"min_members": 2, "min_weight": 0.25}
    expected = select_forward(*likelihood_statistics(likelihood), 3, **settings)
    assert_array_equal(model.selection_.indices, expected.indices)
    assert_allclose(model.selection_.weights, expected.weights)
    assert len(model.selection_) >= 2
    proba = model.predict_proba(X[100:])
    alone = [one.predict_proba(X[100:]) for _, one in model.member_estimators()]
    assert_allclose(proba, np.tensordot(model.selection_.weights, alone, 1), atol=1e-12)
    # The selection knows nothing of what is added far from the training rows.
    model.fitted_ = replace(model.fitted_, far=None)
    within = model.predict_proba(X[100:])
    assert_allclose(model.selection_.loss, log_loss(y[100:], within), rtol=1e-5)
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize("selection", ["top", "hq"])
def test_other_selections(tiny_space, iris, selection):
    X, y = iris
    model = tiny(tiny_space, selection=selection, epochs=5).fit(X, y)
    assert 2 <= len(model.selection_) <= 3
    rows = model.catalog_.held_out.rows
    expected = log_loss(y[rows], model.predict_proba(X[rows]), labels=model.classes_)
    assert_allclose(model.selection_.loss, expected, rtol=1e-4)


def test_a_users_selection_gets_codes_and_probabilities(tiny_space, iris):
    def first(y, proba, n_members, sample_weight=None):
        assert y.dtype == int and proba.shape == (4, len(y), 3) and sample_weight.shape == y.shape
        assert_allclose(proba.sum(axis=2), 1)
        return Selection(np.array([0]), np.ones(1))

    assert tiny(tiny_space, selection=first, epochs=2).fit(*iris).selection_.indices == [0]


@pytest.mark.slow
def test_the_papers_space_and_class_weights(iris):
    X, y = iris
    model = AutoDEUQClassifier(
        3, space="dense", epochs=4, random_state=0, class_weight="balanced"
    ).fit(X, y)
    assert {"node_1", "optimizer", "learning_rate"} <= set(model.catalog_[0].configuration)
    total, aleatoric, epistemic = model.predict_uncertainty(X)
    assert_allclose(total, aleatoric + epistemic)


def test_class_weights_that_leave_no_row(tiny_space):
    X, y = np.arange(8.0)[:, None], np.array(["a", "b"] * 4)
    model = AutoDEUQClassifier(2, space=tiny_space, epochs=1, class_weight={"a": 0, "b": 0})
    with pytest.raises(ValueError, match="`class_weight` must leave a class with a posi"):
        model.fit(X, y)
