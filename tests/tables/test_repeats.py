"""Equal rows stay on one side of every split, and what learns from y sees no validation rows."""

import warnings
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, TransformerMixin, clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_selection import RFE, SelectFromModel, SelectKBest, VarianceThreshold
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, StandardScaler, TargetEncoder
from tiers import cases

import skuq
from skuq.estimators._base import Given
from skuq.estimators._task import hold_out
from skuq.estimators.methods._nomu_readout import split_parts
from skuq.estimators.methods._out_of_fold import make_folds
from skuq.estimators.tabular._linear import RidgeRegression, _merge_equal_rows
from skuq.exceptions import CalibrationWarning, TableWarning
from skuq.networks import MLP
from skuq.tables._inputs import Rows, learns_from_y
from skuq.tables._repeats import number_rows
from skuq.tables._splits import make_splits

QUICK = {"epochs": 2, "network": MLP((4,)), "random_state": 0}
repeated = pytest.mark.filterwarnings("ignore:X has")
nan = np.nan
mixed = pd.DataFrame({"a": [1, nan, 1, nan], "b": pd.Categorical(["x", None, "x", "x"])})


@cases(
    ("X", "numbers"),
    ([[0.0, nan], [1, 2], [-0.0, nan]], [0, 1, 0]),
    (np.array([[1, 2], [2, 1], [1, 2]], dtype="uint8"), [0, 1, 0]),
    ([[1, 7, 3], [3, 5, 3], [5, 3, 3]], None),  # of one sum
    (mixed, [0, 1, 0, 2]),
    (mixed.assign(c=["u", None, "v", None]), None),
    (csr_array([[0, 1], [1, 0], [0, 1.0]]), [0, 1, 0]),
    (["a", "b", "a"], [0, 1, 0]),
    (np.ones((2, 3, 3, 1)), [0, 0]),
    ([[1], [1, 2]], None),  # cannot be compared
    (pd.DataFrame({"a": [[1], [1]]}), None),
)
def test_number_rows(X, numbers):
    n = X.shape[0] if hasattr(X, "shape") else len(X)
    found = number_rows(X, np.arange(n))
    assert (found is None) == (numbers is None)
    if found is not None:
        assert_array_equal(found, numbers)
        assert number_rows(X, np.arange(1)) is None  # others have no weight


def folds_of(split, units, labels):
    """List the folds that one kind of split makes of rows with these numbers."""
    n = len(units)
    rows = Rows(units[:, None].astype(float), np.zeros((n, 1)), np.ones(n))
    if split == "calibrated":
        kind = "numbers" if labels is None else "classes"
        y = np.zeros(n) if labels is None else labels
        return make_folds(None, rows.X, y, np.ones(n, dtype=bool), None, kind)
    if isinstance(split, str):
        return split_parts(split, rows, 0, None, number_rows(rows.X, np.arange(n)), refits=True)
    given = {"labels": labels, "units": number_rows(rows.X, np.arange(n))}
    splits = make_splits(rows, 0, split, n_members=3 if split == 0.3 else None, **given)
    if splits.parts is None:
        return [(np.setdiff1d(np.arange(n), splits.positions), splits.positions)]
    return splits.parts


@repeated
@pytest.mark.parametrize(
    "split",
    [0.2, 0.3, 5, KFold(4, shuffle=True, random_state=0), "auto", "gaps", "calibrated"],
    ids=str,
)
@pytest.mark.parametrize("has_labels", [False, True])
def test_equal_rows_are_on_one_side_of_every_split(split, has_labels, rng):
    distinct, is_nomu = np.arange(60), split in ("auto", "gaps")
    if is_nomu and has_labels:
        return
    for units in (np.repeat(distinct, 6), rng.integers(0, 60, 200), rng.permutation(distinct)):
        labels = (units % 4 == 0).astype(int) if has_labels else None
        for train, valid in folds_of(split, units, labels):
            assert len(train) and len(valid)
            assert not set(units[train]) & set(units[valid])
            if labels is not None and not isinstance(split, KFold):
                assert 0.1 < labels[valid].mean() < 0.45  # stratified
    # Without repeated rows splits are those of rows.
    again = [folds_of(split, x, None if not has_labels else x % 4) for x in (distinct, distinct)]
    assert_array_equal(again[0][0][1], again[1][0][1])


@pytest.mark.parametrize("labels", [None, np.arange(30) % 2])
@pytest.mark.parametrize("split", [0.2, 5, StratifiedKFold(5), "calibrated"], ids=str)
def test_too_few_distinct_rows_are_split_as_rows(labels, split):
    if labels is None and isinstance(split, StratifiedKFold):
        labels = np.arange(30) % 3
    with pytest.warns(TableWarning, match="X has 1 distinct row, too few"):
        folds = folds_of(split, np.zeros(30, dtype=int), labels)
    assert all(len(train) and len(valid) for train, valid in folds)


@cases(
    ("model", "is_class"),
    (skuq.DeepEnsembleRegressor(3, **QUICK), False),
    (skuq.DeepEnsembleRegressor(3, bootstrap=True, loss="mse", **QUICK), False),
    (skuq.DeepEnsembleClassifier(3, **QUICK), True),
    (skuq.TabularEnsembleRegressor(2, epochs=2, random_state=0), False),
    (skuq.TabularEnsembleClassifier(2, epochs=2, random_state=0), True),
)
def test_fit_divides_no_equal_rows(model, is_class, rng, plan):
    X = rng.normal(size=(40, 3))
    rows = np.r_[0:40, 0:25, 0:25, 5]
    y = rows % 3 == 0 if is_class else X[rows, 0] ** 2
    with pytest.warns(TableWarning, match="X has repeated rows: 84 %"):
        jobs, data = plan(model, X[rows], y)
    for job in jobs:
        for train, valid in job.splits:
            keys = [set(map(bytes, data.x[part[part < len(rows)]])) for part in (train, valid)]
            assert keys[0] and keys[1] and not keys[0] & keys[1]
    with pytest.warns(TableWarning, match="repeated"):
        assert np.isfinite(model.fit(X[rows], y).predict(X)).all()


@repeated
def test_copies_do_not_narrow_intervals(rng):
    X, new = rng.uniform(-1, 1, (150, 3)), rng.uniform(-1, 1, (1000, 3))
    y, t = (np.sin(3 * Z[:, 0]) + 0.5 * rng.normal(size=len(Z)) for Z in (X, new))
    rows = rng.permutation(np.repeat(np.arange(150), 4))
    forest = RandomForestRegressor(20, random_state=0)
    for cv in (None, KFold(5, shuffle=True, random_state=0)):
        model = skuq.CalibratedUncertaintyRegressor(forest, cv=cv).fit(X[rows], y[rows])
        low, high = model.predict_interval(new, 0.9).T
        assert 0.84 < np.mean((low <= t) & (t <= high)) < 0.97


@pytest.mark.parametrize("n_times", [1, 3])
def test_ridge_regression_leaves_all_copies_of_a_row_out(n_times, rng):
    units = np.repeat(np.arange(30), n_times)
    X, share = rng.integers(0, 3000, (30, 3))[units].astype(float), rng.uniform(0.5, 1, len(units))
    y = np.column_stack([X[:, 0] + X[:, 1], X[:, 2] + 1000 * rng.normal(size=len(units))])
    distinct, found = _merge_equal_rows(X, y, share / share.sum())
    assert_array_equal(found, units)
    ridge = RidgeRegression.fit(*distinct)
    # Exactly linear targets, which penalties move by 1e-8, are fitted exactly.
    assert_allclose(ridge.left_out[:, 0], 0, atol=1e-3)
    assert_allclose(ridge.coefficients[:, 0], [1, 1, 0], atol=1e-6)
    # The normal equations of all rows but a row's copies, with the penalty that is best.
    share, errors, lefts = share / share.sum(), [], []
    scale = share @ np.square(X - share @ X) / 30
    for penalty in np.logspace(-8, 4, 37) * scale.sum():
        left = []
        for k in range(30):
            x, z, w = X[units != k], y[units != k, 1], share[units != k]
            centred = x - w @ x / w.sum()
            gram = (w * centred.T) @ centred + penalty * np.eye(3)
            slopes = np.linalg.solve(gram, (w * centred.T) @ (z - w @ z / w.sum()))
            mean = w @ z / w.sum() + (X[units == k][0] - w @ x / w.sum()) @ slopes
            left.append(np.average(y[units == k, 1], weights=share[units == k]) - mean)
        errors.append(np.bincount(units, share) @ np.square(left))
        lefts.append(left)
    assert_allclose(ridge.left_out[:, 1], lefts[np.argmin(errors)], rtol=1e-6)


class Top(TransformerMixin, BaseEstimator):
    """Column that y varies with, by any y that `fit` gets."""

    def __init__(self, ignore=False):
        self.ignore = ignore

    def fit(self, X, y=None):
        y = None if self.ignore else y
        self.k_ = 0 if y is None else abs(np.corrcoef(X.T, y)[-1, :-1]).argmax()
        return self

    def transform(self, X):
        return X[:, [self.k_]]


@cases(
    ("transformer", "learns"),
    (None, False),
    ("auto", False),
    (make_pipeline(StandardScaler(), PCA()), False),
    (make_column_transformer((VarianceThreshold(), [0]), (FunctionTransformer(), [1])), False),
    (make_pipeline(StandardScaler(), Top(ignore=True)), False),
    (make_pipeline(StandardScaler(), Top()), True),
    (Top(), True),
    (SelectKBest(k=1), True),
    (make_union(PCA(), SelectKBest(k=1)), True),
    (make_column_transformer((TargetEncoder(), [0])), True),
    (SelectFromModel(RandomForestClassifier()), True),
    (RFE(LogisticRegression()), True),
)
def test_learns_from_y(transformer, learns, rng):
    X = rng.normal(size=(30, 3))
    assert learns_from_y(transformer, X, (X[:, 2] > 0) * 1, np.arange(30)) == learns


NOISE, COIN = np.random.default_rng(0).normal(size=(60, 300)), np.arange(60) % 2
WEIGHT = np.r_[np.zeros(5), np.ones(55)]


@cases(
    ("model", "given"),
    (skuq.DeepEnsembleClassifier(2, **QUICK), {}),
    (skuq.DeepEnsembleClassifier(2, **QUICK), {"sample_weight": WEIGHT}),
    (skuq.DeepEnsembleRegressor(2, **QUICK), {"groups": np.arange(60) // 2}),
    (skuq.MCDropoutRegressor(5, **QUICK), {}),
    (skuq.TabularEnsembleClassifier(2, epochs=2, random_state=0), {}),
)
def test_what_learns_from_y_sees_no_validation_rows(model, given):
    """As `preprocess`, and as a step of a pipeline."""
    y, name = (COIN if is_classifier(model) else NOISE[:, 7]), type(model).__name__.lower()
    best = SelectKBest(k=2)
    held = hold_out(model, Given(NOISE, y, **given))
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


@cases(
    ("last", "given"),
    (skuq.CalibratedUncertaintyClassifier(LogisticRegression(), cv=2), {}),
    (skuq.DeepEnsembleClassifier(1, **QUICK), {"selectkbest__y": None}),
)
def test_a_pipeline_warns_where_validation_rows_are_seen(last, given):
    with (
        pytest.warns(CalibrationWarning, match="Steps before .* learn from y"),
        suppress(TypeError),
    ):
        skuq.make_pipeline(SelectKBest(k=2), last).fit(NOISE, COIN, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        skuq.make_pipeline(PCA(2), last).fit(NOISE, COIN)
