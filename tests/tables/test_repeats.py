"""Equal rows stay on one side of every split, and what learns from y sees no validation rows."""

import warnings
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn import config_context
from sklearn.base import BaseEstimator, TransformerMixin, clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_selection import RFE, SelectKBest, f_regression
from sklearn.frozen import FrozenEstimator as Frozen
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, TargetEncoder
from tiers import cases

import skuq
from skuq.estimators._base import Given
from skuq.estimators._task import hold_out
from skuq.estimators.methods._nomu_readout import split_parts
from skuq.estimators.methods._out_of_fold import make_folds
from skuq.estimators.tabular._linear import RidgeRegression, _merge_equal_rows
from skuq.exceptions import CalibrationWarning, TableWarning
from skuq.networks import MLP, NOMUReadout
from skuq.tables._inputs import Rows, learns_from_y
from skuq.tables._repeats import number_rows
from skuq.tables._splits import make_splits

QUICK = {"epochs": 2, "network": MLP((4,)), "random_state": 0}
KFOLD, nan = KFold(4, shuffle=True, random_state=0), np.nan
mixed = pd.DataFrame({"a": [1, nan, 1, nan], "b": pd.Categorical(["x", None, "x", "x"])})
TABULAR = skuq.TabularEnsembleRegressor(2, epochs=2, random_state=0)
NOISE, COIN = np.random.default_rng(0).normal(size=(60, 300)), np.arange(60) % 2


@cases(
    ("X", "numbers"),
    (np.array([[0.0, nan], [1, 2], [-0.0, nan]]), [0, 1, 0]),
    (np.array([[1, 7, 3], [3, 5, 3], [5, 3, 3]], dtype="uint8"), None),  # of one sum
    (mixed, [0, 1, 0, 2]),
    (mixed.assign(c=["u", None, "v", None]), None),
    (csr_array([[0, 1], [1, 0], [0, 1.0]]), [0, 1, 0]),
    (pd.Series(["a", "b", "a"]), [0, 1, 0]),
    (np.ones((2, 3, 3, 1)), [0, 0]),
    (PCA(2).fit_transform(NOISE[np.arange(90) % 60]), np.arange(90) % 60),
    (pd.DataFrame({"a": [0.3, 0.1 + 0.2, 5.0], "b": [nan, nan, nan]}), [0, 0, 1]),
    (np.array([[1.7e9], [1.7e9 + 0.01], [1.7e9 + 0.02], [1e25], [-np.inf]]), None),
    (np.array([[5], [-1e308], [1e308], [-np.inf]]), None),
    (pd.DataFrame({"a": [[1], [1]]}), None),  # cannot be compared
)
def test_number_rows(X, numbers):
    found = number_rows(X, np.arange(X.shape[0]))
    assert (found is None) == (numbers is None)
    if found is not None:
        assert_array_equal(found, numbers)
        assert number_rows(X, np.arange(1)) is None  # others have no weight


def folds_of(split, X, labels):
    """List the folds that one kind of split makes of rows with these numbers."""
    n, units = len(X), number_rows(X, np.arange(len(X)))
    rows = Rows(X[:, None].astype(float), np.zeros((n, 1)), np.ones(n))
    if split == "calibrated":
        y, kind = (np.zeros(n), "numbers") if labels is None else (labels, "classes")
        return make_folds(None, X, y, rows.weight > 0, None, kind)
    if isinstance(split, str):
        return split_parts(split, rows, 0, None, units, refits=True)
    members = 3 if split == 0.3 else None
    splits = make_splits(rows, 0, split, n_members=members, labels=labels, units=units)
    valid = splits.positions
    return splits.parts or [(np.setdiff1d(np.arange(n), valid), valid)]


@pytest.mark.filterwarnings("ignore:X has")
@pytest.mark.parametrize("split", [0.2, 0.3, 5, KFOLD, "auto", "gaps", "calibrated"], ids=str)
def test_equal_rows_are_on_one_side_of_every_split(split, rng):
    for units in (np.repeat(np.arange(60), 6), rng.integers(0, 60, 200)):
        for labels in (None, (units % 4 == 0).astype(int)):
            for train, valid in folds_of(split, units, labels):
                assert len(train) and len(valid) and not set(units[train]) & set(units[valid])
                if labels is not None and split not in (KFOLD, "auto", "gaps"):
                    assert 0.1 < labels[valid].mean() < 0.45  # stratified


@pytest.mark.parametrize("split", [0.2, 5, StratifiedKFold(5), "calibrated"], ids=str)
def test_too_few_distinct_rows_are_split_as_rows(split):
    with pytest.warns(TableWarning, match="X has 1 distinct row, too few"):
        folds = folds_of(split, np.zeros(30, dtype=int), np.arange(30) % 2)
    assert all(len(train) and len(valid) for train, valid in folds)


@cases(
    ("model",),
    (skuq.DeepEnsembleRegressor(3, bootstrap=True, loss="mse", **QUICK),),
    (skuq.DeepEnsembleClassifier(3, **QUICK),),
    (skuq.TabularEnsembleRegressor(2, epochs=2, random_state=0),),
    (skuq.TabularEnsembleClassifier(2, epochs=2, random_state=0),),
)
def test_fit_divides_no_equal_rows(model, rng, plan):
    X, rows = rng.normal(size=(40, 3)), np.r_[0:40, 0:25, 0:25, 5]
    y = rows % 3 == 0 if is_classifier(model) else X[rows, 0] ** 2
    with pytest.warns(TableWarning, match="repeated"):
        hold_out(model, Given(X[rows], y))
    with pytest.warns(TableWarning, match="X has repeated rows: 84 %"):
        jobs, data = plan(model, X[rows], y)
    for train, valid in (split for job in jobs for split in job.splits):
        keys = [set(map(bytes, data.x[part[part < len(rows)]])) for part in (train, valid)]
        assert keys[0] and keys[1] and not keys[0] & keys[1]
    with pytest.warns(TableWarning, match="repeated"):
        assert np.isfinite(model.fit(X[rows], y).predict(X)).all()


@pytest.mark.filterwarnings("ignore:X has")
@pytest.mark.parametrize("cv", [None, KFOLD], ids=str)
def test_copies_do_not_narrow_intervals(cv, rng):
    X, new = rng.uniform(-1, 1, (150, 3)), rng.uniform(-1, 1, (1000, 3))
    y, t = (np.sin(3 * Z[:, 0]) + 0.5 * rng.normal(size=len(Z)) for Z in (X, new))
    rows = rng.permutation(np.repeat(np.arange(150), 4))
    forest = RandomForestRegressor(20, random_state=0)
    model = skuq.CalibratedUncertaintyRegressor(forest, cv=cv).fit(X[rows], y[rows])
    low, high = model.predict_interval(new, 0.9)
    assert 0.84 < np.mean((low <= t) & (t <= high)) < 0.97


@pytest.mark.filterwarnings("ignore:X has")
@cases(("validation", "n_groups"), (0.3, 6), (3, 20))
def test_sizes_are_chosen_by_folds_of_groups_or_distinct_rows(tiny_space, validation, n_groups):
    model = skuq.NESRegressor(2, n_members=2, epochs=1, space=tiny_space, validation=validation)
    for groups, together in ((None, np.arange(60) % 20), (np.arange(60) // 3,) * 2):
        model.fit(NOISE[np.arange(60) % 20, :3], NOISE[:, 3], groups=groups)
        found = model.fitted_.trials.candidates(model.fitted_.targets.head).groups
        pairs = set(zip(found, together[model.catalog_.held_out.rows]))
        assert len(pairs) == len(set(found)) == n_groups
    new = NOISE[[0, 1, 0], :3]
    later = model.fitted_.predict_trials(new, new[:, :1], np.ones(3), refits=False)
    assert_array_equal(later.groups, [0, 1, 0])
    model.set_params(validation="auto").fit(NOISE[:, :3], COIN, validation_data=(new, new[:, 0]))
    assert_array_equal(model.catalog_.held_out.groups, [0, 1, 0])


@pytest.mark.parametrize("n_times", [1, 3])
def test_ridge_regression_leaves_all_copies_of_a_row_out(n_times, rng):
    units, first = np.repeat(np.arange(30), n_times), n_times * np.arange(30)
    X, share = rng.integers(0, 3000, (30, 3))[units].astype(float), rng.uniform(0.5, 1, len(units))
    y = np.column_stack([X[:, 0] + X[:, 1], X[:, 2] + 1000 * rng.normal(size=len(units))])
    share /= share.sum()
    ridge = RidgeRegression.fit(*_merge_equal_rows(X, y, share)[0])
    # Exactly linear targets, which penalties move by 1e-8, are fitted exactly.
    assert_allclose(ridge.left_out[:, 0], 0, atol=1e-3)
    assert_allclose(ridge.coefficients[:, 0], [1, 1, 0], atol=1e-6)
    # Fits to all rows but a row's copies, with the penalty that is best.
    of_row, lefts = np.bincount(units, share), []
    for penalty in np.logspace(-8, 4, 37) * (share @ np.square(X - share @ X) / 30).sum():
        others = [(X[k], y[k, 1], share[k]) for k in units != np.arange(30)[:, None]]
        found = [Ridge(penalty).fit(*rows).predict(X[[k]]) for rows, k in zip(others, first)]
        lefts.append(np.bincount(units, share * y[:, 1]) / of_row - np.ravel(found))
    assert_allclose(ridge.left_out[:, 1], lefts[np.argmin(np.square(lefts) @ of_row)], rtol=1e-6)


class Top(TransformerMixin, BaseEstimator):
    """First column, or the one that y varies with."""

    def __init__(self, learns):
        self.learns = learns

    def fit(self, X, y=None):
        self.k_ = 0 if y is None or not self.learns else abs(np.corrcoef(X.T, y)[-1, :-1]).argmax()
        return self

    def transform(self, X):
        return X[:, [self.k_]]


@cases(
    ("transformer", "learns"),
    (None, False),
    (make_pipeline(StandardScaler(), PCA()), False),
    (make_pipeline(StandardScaler(), Top(False)), False),
    (make_pipeline(StandardScaler(), Top(True)), True),
    (make_pipeline(PCA(), SelectKBest(k=1)), True),
    (make_column_transformer((TargetEncoder(), [0])), True),
    (RFE(LogisticRegression()), True),
)
def test_learns_from_y(transformer, learns, rng):
    X = rng.normal(size=(30, 3))
    assert learns_from_y(transformer, X, (X[:, 2] > 0) * 1, np.arange(30)) == learns


@pytest.mark.filterwarnings("ignore:The model predicts its validation rows worse")
@cases(
    ("model", "given"),
    (skuq.DeepEnsembleClassifier(2, **QUICK), {"sample_weight": np.r_[[0.0] * 5, [1.0] * 55]}),
    (skuq.DeepEnsembleRegressor(2, **QUICK), {"groups": np.arange(60) // 2}),
    (skuq.TabularEnsembleClassifier(2, epochs=2, random_state=0), {}),
)
def test_what_learns_from_y_sees_no_validation_rows(model, given):
    """As `preprocess`, and as a step of a pipeline."""
    y, name = (COIN if is_classifier(model) else NOISE[:, 7]), type(model).__name__.lower()
    best, held = SelectKBest(k=2), hold_out(model, Given(NOISE, y, **given))
    assert_array_equal(hold_out(model, Given(NOISE, y[:, None], **given)).X, held.X)
    n_valid = len(held.validation_data[0])
    assert 9 < n_valid < 15 and len(held.X) + n_valid == np.sum(given.get("sample_weight", 60))
    expected = clone(best).fit(held.X, held.y).scores_
    alone = clone(model).set_params(preprocess=best).fit(NOISE, y, **given)
    assert_allclose(alone.preprocessor_.scores_, expected)
    steps = {f"{name}__{argument}": value for argument, value in given.items()}
    pipeline = skuq.make_pipeline(best, clone(model)).fit(NOISE, y, **steps)
    assert_allclose(pipeline[0].scores_, expected)
    assert_allclose(pipeline.predict(NOISE), alone.predict(NOISE), rtol=1e-5)
    assert {len(member.held_out) for member in pipeline[-1].members_} == {n_valid}


def test_what_learns_from_y_sees_all_rows_where_none_are_held_out():
    best, y, chosen = SelectKBest(f_regression, k=2), NOISE[:, 7], {"l_min": 1, "l_max": 2, "c": 1}
    model = skuq.NOMURegressor(readout=NOMUReadout(**chosen), epochs=2, random_state=0)
    alone, pipeline = clone(model).set_params(preprocess=best), skuq.make_pipeline(best, model)
    found = alone.fit(NOISE, y).preprocessor_.scores_, pipeline.fit(NOISE, y)[0].scores_
    assert_allclose(found, [best.fit(NOISE, y).scores_] * 2)


@cases(
    ("last", "given"),
    (skuq.CalibratedUncertaintyClassifier(LogisticRegression(), cv=2), {}),
    (skuq.DeepEnsembleClassifier(1, **QUICK), {"selectkbest__y": None}),
    (GridSearchCV(skuq.DeepEnsembleClassifier(1, **QUICK), {"epochs": [2]}, cv=2), {}),
    *((m, {}) for m in (TABULAR, skuq.AutoDEUQRegressor(n_trials=2, epochs=1, random_state=0))),
)
def test_a_pipeline_warns_where_validation_rows_are_seen(last, given):
    told = "Steps before .* learn from y|Regressor is not calibrated"
    with pytest.warns(CalibrationWarning, match=told), suppress(TypeError):
        skuq.make_pipeline(SelectKBest(k=2), last).fit(NOISE, COIN, **given)
    with warnings.catch_warnings(action="error", category=CalibrationWarning):
        skuq.make_pipeline(PCA(2), last).fit(NOISE, COIN)
        fitted = skuq.DeepEnsembleClassifier(1, **QUICK).fit(NOISE[:, :2], COIN)
        for inner in (skuq.CalibratedUncertaintyClassifier(fitted, cv="prefit"), Frozen(fitted)):
            skuq.make_pipeline(SelectKBest(k=2), inner).fit(NOISE, COIN)
        with pytest.raises(ValueError, match="requires y to be passed"):
            skuq.make_pipeline(SelectKBest(k=2), last).fit(NOISE)


def test_a_pipeline_does_not_warn_of_given_rows_or_where_it_is_calibrated():
    best, y = SelectKBest(f_regression, k=2), NOISE[:, 7]
    with warnings.catch_warnings(action="error", category=CalibrationWarning):
        skuq.CalibratedUncertaintyRegressor(skuq.make_pipeline(best, TABULAR), cv=2).fit(NOISE, y)
        with config_context(enable_metadata_routing=True):
            model = skuq.DeepEnsembleRegressor(1, **QUICK).set_fit_request(X_val=True, y_val=True)
            pipeline = skuq.make_pipeline(best, model, transform_input=["X_val"])
            pipeline.fit(NOISE[20:], y[20:], X_val=NOISE[:20], y_val=y[:20])
