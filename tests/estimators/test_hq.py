"""Teams of classifiers that are chosen by their diversity."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import model_selection
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits, load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, ShuffleSplit, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from tiers import cases

from skuq import DeepEnsembleClassifier, HQEnsembleSelector
from skuq.ensembles import select_teams
from skuq.exceptions import CalibrationWarning
from skuq.networks import MLP


def make_pool():
    return [
        ("linear", make_pipeline(StandardScaler(), LogisticRegression())),
        ("bayes", GaussianNB()),
        ("near", KNeighborsClassifier()),
        ("tree", DecisionTreeClassifier(max_depth=2, random_state=0)),
        ("stump", DecisionTreeClassifier(max_depth=1, random_state=0)),
    ]


BAYES, OTHER = ("bayes", GaussianNB()), ("near", KNeighborsClassifier())

X, Y = load_digits(return_X_y=True)
X, X_NEW, Y, Y_NEW = model_selection.train_test_split(
    X[:600], Y[:600], test_size=300, random_state=0, stratify=Y[:600]
)


@pytest.fixture(scope="module")
def fitted():
    return [(name, model.fit(X, Y)) for name, model in make_pool()]


@pytest.mark.parametrize("voting", ["soft", "hard"])
def test_hq_selector_chooses_by_out_of_fold_predictions(voting):
    pool = make_pool()
    model = HQEnsembleSelector(pool, voting=voting, cv=3).fit(X, Y)
    method = "predict" if voting == "hard" else "predict_proba"
    predictions = [cross_val_predict(m, X, Y, cv=3, method=method) for _, m in pool]
    chosen = select_teams(predictions, Y, voting=voting)
    pd.testing.assert_frame_equal(model.teams_, chosen.teams_)
    assert model.selected_ == chosen.selected_
    assert (model.n_possible_, model.n_scored_) == (26, chosen.n_scored_)
    names = [pool[k][0] for k in model.selected_]
    assert list(model.named_estimators_) == names
    vote = VotingClassifier([pool[k] for k in model.selected_], voting=voting).fit(X, Y)
    # scikit-learn's ties of votes go to the first class.
    sole = np.sort(model.predict_proba(X_NEW), axis=1) @ np.r_[[0] * 8, -1, 1] > 1e-3
    assert sole.mean() > 0.5
    assert_array_equal(model.predict(X_NEW)[sole], vote.predict(X_NEW)[sole])
    if voting == "soft":
        assert_allclose(model.predict_proba(X_NEW), vote.predict_proba(X_NEW))


# Pairs come first in `teams_`, and the team of all models last.
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("weights", [None, "accuracy"])
@pytest.mark.parametrize("voting", ["soft", "hard", "majority"])
def test_hq_selector_serves_what_it_judged(fitted, voting, weights, place):
    """Ties and all."""
    settings = {"filters": (), "choose": lambda teams: teams.index[place]}
    model = HQEnsembleSelector(fitted, cv="prefit", voting=voting, weights=weights, **settings)
    model.fit(X_NEW, Y_NEW)
    assert all(member is dict(fitted)[n] for n, member in model.named_estimators_.items())
    if weights == "accuracy":
        accuracy = model.accuracies_[list(model.selected_)]
        assert_allclose(model.weights_, accuracy / accuracy.sum())
    assert_allclose(model.accuracies_, [m.score(X_NEW, Y_NEW) for _, m in fitted])
    judged = model.teams_.set_index("team").loc[[model.selected_], "accuracy"].item()
    right = model.predict(X_NEW) == Y_NEW
    if voting == "majority":
        # The other rows get the label with the most votes, which may be right.
        assert right.mean() > judged
        right &= model.predict_proba(X_NEW).max(axis=1) > 0.5 + 1e-6
    assert_allclose(right.mean(), judged, atol=1e-12)


@pytest.mark.parametrize("voting", ["soft", "hard", "majority"])
def test_hq_selector_predicts_and_transforms_by_its_members(fitted, voting):
    model = HQEnsembleSelector(fitted, cv="prefit", voting=voting).fit(X_NEW, Y_NEW)
    names = [model.names_[k] for k in model.selected_]
    # Parameters of a later fit do not count.
    model.set_params(voting="hard" if voting == "soft" else "soft", estimators=fitted[:2])
    assert list(model.named_estimators_) == names
    proba, std = model.predict_proba(X, return_std=True)
    columns = list(model.get_feature_names_out())
    if voting == "soft":
        members = np.stack([m.predict_proba(X) for m in model.estimators_])
        assert_allclose(std, members.std(axis=0), atol=1e-12)
        label, spread = model.predict(X, return_std=True)
        assert_array_equal(label, model.classes_[proba.argmax(axis=1)])
        assert_allclose(spread, std[np.arange(len(X)), proba.argmax(axis=1)])
        assert model.predict_uncertainty(X).epistemic.max() > 0.01
        assert_allclose(model.transform(X), np.concatenate(members, axis=1))
        assert columns == [f"hqensembleselector_{name}{k}" for name in names for k in range(10)]
    else:
        votes = np.stack([m.predict(X) for m in model.estimators_])
        members = (votes[:, :, None] == model.classes_).astype(float)
        assert_array_equal(model.transform(X), votes.T)
        assert columns == [f"hqensembleselector_{name}" for name in names]
        assert np.isneginf(model.predict_log_proba(X)).any()
    assert_allclose(proba, members.mean(axis=0), atol=1e-6 * (voting != "soft"))


def test_hq_selector_keeps_groups_together():
    groups, pool = np.arange(len(Y)) // 3, [BAYES, OTHER]
    for cv, kind in ((None, model_selection.StratifiedGroupKFold(5)), (GroupKFold(3),) * 2):
        found = HQEnsembleSelector(pool, cv=cv).fit(X, Y, groups=groups)
        splits = list(kind.split(X, Y, groups))
        expected = HQEnsembleSelector(pool, cv=splits).fit(X, Y)
        pd.testing.assert_frame_equal(found.teams_, expected.teams_)


def test_hq_selector_passes_sample_weight_to_members_and_choice(fitted):
    pool = [*make_pool()[3:], ("deep", DecisionTreeClassifier(random_state=1))]
    weight = np.where(Y < 5, 1.0, 0.0)
    frozen = [(n, FrozenEstimator(clone(m).fit(X, Y))) for n, m in pool]
    model = HQEnsembleSelector(frozen, cv="prefit").fit(X, Y, weight)
    assert_allclose(model.accuracies_, [m.score(X[Y < 5], Y[Y < 5]) for _, m in frozen])
    fresh = HQEnsembleSelector(pool, cv=3).fit(X, Y, weight)
    member = clone(pool[fresh.selected_[0]][1]).fit(X, Y, sample_weight=weight)
    assert_array_equal(fresh.estimators_[0].predict(X), member.predict(X))
    # Frozen models are not fitted again, so that they need not take weights.
    frozen = [(name, FrozenEstimator(m)) for name, m in fitted]
    mixed = HQEnsembleSelector([*frozen, ("bayes2", GaussianNB())], cv=3)
    mixed.fit(X_NEW, Y_NEW, np.ones(len(Y_NEW)))
    assert_allclose(mixed.accuracies_[:5], [m.score(X_NEW, Y_NEW) for _, m in fitted])
    assert mixed.names_[5] == "bayes2" and mixed.accuracies_[5] < 1


def test_hq_selector_compares_teams_on_classes_that_folds_have_seen():
    labels = np.where(np.arange(300) < 2, 99, Y)  # both rows are in the first fold
    pool = make_pool()[1:4]
    with pytest.warns(CalibrationWarning, match=r"choice of a team leaves out 2 .* classes \[99\]"):
        model = HQEnsembleSelector(pool, cv=KFold(3)).fit(X, labels)
    predictions = [cross_val_predict(m, X, labels, cv=KFold(3))[2:] for _, m in pool]
    assert_allclose(model.accuracies_, [np.mean(p == labels[2:]) for p in predictions])
    assert 99 in model.classes_


def test_hq_selector_takes_fitted_models_of_any_kind(fitted):
    functions = [(name, model.predict_proba) for name, model in fitted]
    for voting in ("soft", "hard"):
        model = HQEnsembleSelector(functions, cv="prefit", voting=voting).fit(X_NEW, Y_NEW)
        assert_allclose(model.accuracies_, [m.score(X_NEW, Y_NEW) for _, m in fitted])
    # They know classes of which no row compares them.
    part = HQEnsembleSelector(fitted, cv="prefit").fit(X_NEW[Y_NEW < 3], Y_NEW[Y_NEW < 3])
    assert len(part.classes_) == 10


def test_hq_selector_takes_members_of_an_ensemble():
    networks = DeepEnsembleClassifier(2, network=MLP((16,)), epochs=8, random_state=0).fit(X, Y)
    pool = networks.member_estimators()
    mean = np.mean([member.predict_proba(X_NEW) for _, member in pool], axis=0)
    assert_allclose(mean, networks.predict_proba(X_NEW))
    assert HQEnsembleSelector(pool, cv="prefit").fit(X_NEW, Y_NEW).score(X_NEW, Y_NEW) > 0.8
    with pytest.raises(NotFittedError):
        DeepEnsembleClassifier().member_estimators()


def test_grid_search_reaches_into_the_pool():
    model = HQEnsembleSelector(make_pool()[1:4], cv=2)
    grid = GridSearchCV(model, {"tree__max_depth": [1, 4], "bayes": ["drop"]}, cv=2).fit(X, Y)
    best = grid.best_estimator_
    assert best.names_ == ["near", "tree"]
    assert best.named_estimators_["tree"].max_depth == grid.best_params_["tree__max_depth"]
    assert len(set(grid.cv_results_["mean_test_score"])) == 2


def test_hq_selector_cross_validates_models_on_the_labels_as_they_are():
    """Here `class_weight` names them."""
    X, y = load_iris(return_X_y=True)
    labels = np.array(["a", "b", "c"])[y]
    tilted = LogisticRegression(class_weight={"a": 50, "b": 1, "c": 1}, max_iter=500)
    folds = model_selection.StratifiedKFold(3)
    expected = cross_val_predict(tilted, X, labels, cv=folds)
    for voting in ("soft", "hard"):
        model = HQEnsembleSelector([("tilted", tilted), BAYES], cv=folds, voting=voting)
        assert_allclose(model.fit(X, labels).accuracies_[0], np.mean(expected == labels))


class Odd(ClassifierMixin, BaseEstimator):
    """Classifier that predicts given values as probabilities."""

    def __init__(self, give=None):
        self.give = give

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.full((len(X), 1), self.classes_[0])

    def predict_proba(self, X):
        return self.give(len(X), len(self.classes_))


NO_PROBABILITIES = [
    lambda n, c: np.full((n, c), np.nan),
    lambda n, c: np.full((n, c), 0.5 / c),
    lambda n, c: np.full((n, c - 1), 1 / (c - 1)),
    lambda n, c: np.tile(np.r_[-1, 2, np.zeros(c - 2)], (n, 1)),
]
MANY = [(f"t{k}", DecisionTreeClassifier(max_depth=1, random_state=k)) for k in range(26)]
KNOWN, FEW = (("a", GaussianNB().fit(X[n > Y], Y[n > Y])) for n in (10, 8))
PREFIT = {"cv": "prefit"}


@cases(
    ("pool", "params", "message"),
    ([], {}, "at least two"),
    ([BAYES, ("other", "passthrough")], {}, 'must be classifiers or "drop"'),
    ([BAYES, GaussianNB()], {}, "tuples"),
    ([BAYES, BAYES], {}, "not unique"),
    ([BAYES, ("other", LinearRegression())], {}, "must be a classifier"),
    ([BAYES, ("other", Perceptron())], {}, "no predict_proba"),
    ([BAYES, ("f", KNOWN[1].predict_proba)], {}, "'f' in .* must be a scikit-learn classifier"),
    (MANY, {}, "67,108,837 teams"),
    ([BAYES, OTHER], {"weights": [1, 1]}, "The 'weights' parameter"),
    ([BAYES, OTHER], {"cv": ShuffleSplit(3)}, "`cv` must .* exactly one test fold"),
    ([BAYES, OTHER], {"beta": 0.3, "filters": ("mean",)}, 'add "alpha" to `filters`'),
    *(([("odd", Odd(give)), BAYES], {}, "of Odd.* must give") for give in NO_PROBABILITIES),
    ([BAYES, OTHER], {"sample_weight": Y}, "'near' in .* cannot be fitted with `sample_weight`"),
    ([BAYES, OTHER], {"y": 0 * Y}, "1 class"),
    ([KNOWN, OTHER], PREFIT, "'near' in .* must be fitted"),
    ([KNOWN, ("few", FEW[1])], PREFIT, "same classes. 'few' knows"),
    ([KNOWN, ("b", KNOWN[1])], {**PREFIT, "y": Y + 5}, "not seen in fit"),
    ([KNOWN, ("b", KNOWN[1])], {**PREFIT, "groups": Y}, "leave out `groups`"),
)
def test_hq_selector_refuses(pool, params, message):
    of_fit = {"y", "sample_weight", "groups"} & set(params)
    given, settings = {"y": Y} | {name: params[name] for name in of_fit}, params.keys() - of_fit
    model = HQEnsembleSelector(pool, **{name: params[name] for name in settings})
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(X, **given)
