from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context, model_selection
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits, load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, ShuffleSplit, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
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


class Counted(GaussianNB):
    """Notes the rows of every fit."""

    fits: ClassVar[list] = []

    def fit(self, X, y):
        self.fits.append((self.var_smoothing, len(X)))
        return super().fit(X, y)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return model_selection.train_test_split(
        X[:600], y[:600], test_size=300, random_state=0, stratify=y[:600]
    )


@pytest.fixture(scope="module")
def fitted(digits):
    X, _, y, _ = digits
    return [(name, model.fit(X, y)) for name, model in make_pool()]


@pytest.mark.parametrize("voting", ["soft", "hard"])
def test_hq_selector_chooses_by_out_of_fold_predictions(digits, voting):
    X, X_new, y, _ = digits
    pool = make_pool()
    model = HQEnsembleSelector(pool, voting=voting, cv=3).fit(X, y)
    method = "predict" if voting == "hard" else "predict_proba"
    predictions = [cross_val_predict(m, X, y, cv=3, method=method) for _, m in pool]
    chosen = select_teams(predictions, y, voting=voting)
    pd.testing.assert_frame_equal(model.teams_, chosen.teams_)
    assert model.selected_ == chosen.selected_
    assert (model.n_possible_, model.n_scored_) == (26, chosen.n_scored_)
    names = [pool[k][0] for k in model.selected_]
    assert list(model.named_estimators_) == names
    vote = VotingClassifier([pool[k] for k in model.selected_], voting=voting).fit(X, y)
    if voting == "soft":
        assert_allclose(model.predict_proba(X_new), vote.predict_proba(X_new))
        assert_array_equal(model.predict(X_new), vote.predict(X_new))
    else:  # scikit-learn's ties go to the first class
        votes = np.stack([e.predict(X_new) for e in vote.estimators_])
        counts = np.sort((votes[..., None] == vote.classes_).sum(axis=0), axis=1)
        sole = counts[:, -1] > counts[:, -2]
        assert sole.mean() > 0.5
        assert_array_equal(model.predict(X_new)[sole], vote.predict(X_new)[sole])


# Pairs come first in `teams_`, and the team of all models last.
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("weights", [None, "accuracy"])
@pytest.mark.parametrize("voting", ["soft", "hard", "majority"])
def test_hq_selector_serves_what_it_judged(digits, fitted, voting, weights, place):
    """Ties and all."""
    _, X, _, y = digits
    settings = {"filters": (), "choose": lambda teams: teams.index[place]}
    model = HQEnsembleSelector(fitted, cv="prefit", voting=voting, weights=weights, **settings)
    model.fit(X, y)
    assert all(member is dict(fitted)[n] for n, member in model.named_estimators_.items())
    if weights == "accuracy":
        accuracy = model.accuracies_[list(model.selected_)]
        assert_allclose(model.weights_, accuracy / accuracy.sum())
    assert_allclose(model.accuracies_, [m.score(X, y) for _, m in fitted])
    judged = model.teams_.set_index("team").loc[[model.selected_], "accuracy"].item()
    right = model.predict(X) == y
    if voting == "majority":
        # The other rows get the label with the most votes, which may be right.
        assert right.mean() > judged
        right &= model.predict_proba(X).max(axis=1) > 0.5 + 1e-6
    assert_allclose(right.mean(), judged, atol=1e-12)


@pytest.mark.parametrize("voting", ["soft", "hard", "majority"])
def test_hq_selector_predicts_and_transforms_by_its_members(digits, fitted, voting):
    _, X, _, y = digits
    model = HQEnsembleSelector(fitted, cv="prefit", voting=voting).fit(X, y)
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


def test_hq_selector_takes_text_classes_frames_and_pipelines(digits):
    frame, target = load_iris(return_X_y=True, as_frame=True)
    frame["site"] = np.where(frame.iloc[:, 0] > 5.8, "north", "south")
    target = target.map({0: "a", 1: "b", 2: "c"})
    encode = make_column_transformer((OneHotEncoder(), ["site"]), remainder="passthrough")
    pool = [(name, make_pipeline(clone(encode), model)) for name, model in make_pool()]
    model = HQEnsembleSelector(pool, cv=3).fit(frame, target)
    assert set(model.predict(frame)) <= {"a", "b", "c"}
    assert model.log_prob(frame, target).shape == (150,)


def test_hq_selector_keeps_groups_together(digits):
    X, _, y, _ = digits
    groups, pool = np.arange(len(y)) // 3, [BAYES, OTHER]
    named = np.unique(groups).astype(object)
    named[-1] = None
    for cv, kind, given in (
        (None, model_selection.StratifiedGroupKFold(5), groups),
        (GroupKFold(3), GroupKFold(3), groups),
        (GroupKFold(3), GroupKFold(3), named[groups]),
    ):
        found = HQEnsembleSelector(pool, cv=cv).fit(X, y, groups=given)
        splits = list(kind.split(X, y, groups))
        expected = HQEnsembleSelector(pool, cv=splits).fit(X, y)
        pd.testing.assert_frame_equal(found.teams_, expected.teams_)


def test_hq_selector_passes_sample_weight_to_members_and_choice(digits, fitted):
    X, X_new, y, y_new = digits
    pool = [*make_pool()[3:], ("deep", DecisionTreeClassifier(random_state=1))]
    weight = np.where(y < 5, 1.0, 0.0)
    frozen = [(n, FrozenEstimator(m.fit(X, y))) for n, m in pool]
    model = HQEnsembleSelector(frozen, cv="prefit").fit(X, y, weight)
    assert_allclose(model.accuracies_, [m.score(X[y < 5], y[y < 5]) for _, m in pool])
    fresh = HQEnsembleSelector(pool, cv=3).fit(X, y, weight)
    member = clone(pool[fresh.selected_[0]][1]).fit(X, y, sample_weight=weight)
    assert_array_equal(fresh.estimators_[0].predict(X), member.predict(X))
    with pytest.raises(TypeError, match="'near' in .* cannot be fitted with `sample_weight`"):
        HQEnsembleSelector(make_pool()[1:], cv=3).fit(X, y, weight)
    # A pipeline gets them for its last step.
    for routing in (False, True):
        with config_context(enable_metadata_routing=routing):
            inside = [(n, make_pipeline("passthrough", m)) for n, m in pool]
            found = HQEnsembleSelector(inside, cv=3).fit(X, y, weight)
        pd.testing.assert_frame_equal(found.teams_, fresh.teams_)
        assert_array_equal(found.predict(X), fresh.predict(X))
    # Frozen models are not fitted again, so that they need not take weights.
    frozen = [(name, FrozenEstimator(m)) for name, m in fitted]
    mixed = HQEnsembleSelector([*frozen, ("bayes2", GaussianNB())], cv=3)
    mixed.fit(X_new, y_new, np.ones(len(y_new)))
    assert_allclose(mixed.accuracies_[:5], [m.score(X_new, y_new) for _, m in fitted])
    assert mixed.names_[5] == "bayes2" and mixed.accuracies_[5] < 1


def test_hq_selector_compares_teams_on_classes_that_folds_have_seen(digits):
    X, _, y, _ = digits
    labels = np.where(np.arange(300) < 2, 99, y)  # both rows are in the first fold
    pool = make_pool()[1:4]
    with pytest.warns(CalibrationWarning, match=r"choice of a team leaves out 2 .* classes \[99\]"):
        model = HQEnsembleSelector(pool, cv=KFold(3)).fit(X, labels)
    predictions = [cross_val_predict(m, X, labels, cv=KFold(3))[2:] for _, m in pool]
    assert_allclose(model.accuracies_, [np.mean(p == labels[2:]) for p in predictions])
    assert 99 in model.classes_


def test_hq_selector_takes_functions_of_probabilities(digits, fitted):
    _, X, _, y = digits
    expected = HQEnsembleSelector(fitted, cv="prefit").fit(X, y)
    functions = [(name, model.predict_proba) for name, model in fitted]
    for voting in ("soft", "hard"):
        model = HQEnsembleSelector(functions, cv="prefit", voting=voting).fit(X, y)
        assert_allclose(model.accuracies_, expected.accuracies_)
    with pytest.raises(TypeError, match="'linear' in .* must be a scikit-learn classifier"):
        HQEnsembleSelector(functions).fit(X, y)


def test_hq_selector_fits_only_the_chosen_on_all_rows(digits):
    X, _, y, _ = digits
    counted = {f"by {share}": Counted(var_smoothing=share) for share in (1e-9, 0.1, 0.5, 10.0)}
    Counted.fits.clear()
    model = HQEnsembleSelector(list(counted.items()), cv=3, max_team_size=2).fit(X, y)
    chosen = [model.names_[k] for k in model.selected_]
    for name, member in counted.items():
        rows = [n for share, n in Counted.fits if share == member.var_smoothing]
        assert rows == [200] * 3 + [300] * (name in chosen)
    model = HQEnsembleSelector(make_pool()[1:4], cv=2)
    grid = GridSearchCV(model, {"tree__max_depth": [1, 4], "bayes": ["drop"]}, cv=2).fit(X, y)
    best = grid.best_estimator_
    assert best.names_ == ["near", "tree"]
    assert best.named_estimators_["tree"].max_depth == grid.best_params_["tree__max_depth"]
    assert len(set(grid.cv_results_["mean_test_score"])) == 2


def test_hq_selector_cross_validates_models_on_the_labels_as_they_are():
    X, y = load_iris(return_X_y=True)
    for labels in (np.array(["a", "b", "c"])[y], y + 1):
        weights = {labels[0]: 50, labels[50]: 1, labels[100]: 1}
        tilted = LogisticRegression(class_weight=weights, max_iter=500)
        settings = {
            "estimators": [("tilted", tilted), BAYES],
            "cv": model_selection.StratifiedKFold(3),
        }
        soft, hard = (
            HQEnsembleSelector(**settings, voting=voting).fit(X, labels)
            for voting in ("soft", "hard")
        )
        assert_allclose(soft.accuracies_, hard.accuracies_)


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
    lambda n, c: [np.full((n, 2), 0.5)] * c,
]


@pytest.mark.parametrize("voting", ["soft", "hard"])
def test_hq_selector_takes_single_precision_and_columns_of_labels(digits, voting):
    X, _, y, _ = digits
    odd = Odd(lambda n, c: np.full((n, c), 1 / c, dtype=np.float16))
    model = HQEnsembleSelector([("odd", odd), BAYES], cv=2, voting=voting, weights="accuracy")
    model.fit(X, y)
    assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    labels = model.predict(X)
    assert labels.shape == y.shape


MANY = [(f"t{k}", DecisionTreeClassifier(max_depth=1, random_state=k)) for k in range(26)]


@cases(
    ("pool", "params", "message"),
    ([], {}, "at least two"),
    ([BAYES, ("other", "drop")], {}, "at least two"),
    ([BAYES, ("other", "passthrough")], {}, 'must be classifiers or "drop"'),
    ([BAYES, GaussianNB()], {}, "tuples"),
    ([BAYES, BAYES], {}, "not unique"),
    ([BAYES, ("a__b", GaussianNB())], {}, "__"),
    ([BAYES, ("other", LinearRegression())], {}, "must be a classifier"),
    ([BAYES, ("other", None)], {}, "must be a classifier"),
    ([BAYES, ("other", Perceptron())], {}, "no predict_proba"),
    (MANY, {}, "67,108,837 teams"),
    ([BAYES, OTHER], {"voting": "absolute"}, "The 'voting' parameter"),
    ([BAYES, OTHER], {"weights": [1, 1]}, "The 'weights' parameter"),
    ([BAYES, OTHER], {"cv": ShuffleSplit(3)}, "`cv` must .* exactly one test fold"),
    ([BAYES, OTHER], {"beta": 0.3, "filters": ("mean",)}, 'add "alpha" to `filters`'),
    *(([("odd", Odd(give)), BAYES], {}, "of Odd.* must give") for give in NO_PROBABILITIES),
    ([BAYES, OTHER], {"y": lambda y: 0 * y}, "1 class"),
    ([BAYES, OTHER], {"y": lambda y: y[:-1]}, "inconsistent numbers"),
    ([BAYES, OTHER], {"y": lambda y: y + 0.5}, "continuous"),
    ([BAYES, OTHER], {"X": lambda X: np.nan * X}, "NaN"),
)
def test_hq_selector_refuses(digits, pool, params, message):
    X, _, y, _ = digits
    params = dict(params)
    X, y = params.pop("X", lambda X: X)(X), params.pop("y", lambda y: y)(y)
    with pytest.raises(ValueError, match=message):
        HQEnsembleSelector(pool, **params).fit(X, y)


def test_hq_selector_refuses_prefit_models(digits, fitted):
    X, X_new, y, y_new = digits
    few = ("few", GaussianNB().fit(X[y < 8], y[y < 8]))
    for pool, labels, given, message in (
        ([*fitted[:2], ("tree", DecisionTreeClassifier())], y_new, {}, "'tree' in .* must be fit"),
        ([*fitted, few], y_new, {}, "same classes. 'few' knows"),
        (fitted, y_new + 5, {}, "not seen in fit"),
        (fitted, y_new, {"groups": y_new}, "leave out `groups`"),
    ):
        with pytest.raises(ValueError, match=message):
            HQEnsembleSelector(pool, cv="prefit").fit(X_new, labels, **given)
    part = HQEnsembleSelector(fitted, cv="prefit").fit(X_new[y_new < 3], y_new[y_new < 3])
    assert len(part.classes_) == 10


def test_hq_selector_takes_members_of_an_ensemble(digits):
    X, X_new, y, y_new = digits
    networks = DeepEnsembleClassifier(2, network=MLP((16,)), epochs=8, random_state=0).fit(X, y)
    pool = networks.member_estimators()
    assert_allclose(
        np.mean([m.predict_proba(X_new) for _, m in pool], axis=0), networks.predict_proba(X_new)
    )
    pool.append(("near", KNeighborsClassifier().fit(X, y)))
    model = HQEnsembleSelector(pool, cv="prefit").fit(X_new, y_new)
    assert model.n_possible_ == 4 and model.score(X_new, y_new) > 0.8
    with pytest.raises(NotFittedError):
        DeepEnsembleClassifier().member_estimators()
