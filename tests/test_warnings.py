"""Warnings point at the user's line, through whatever calls lie in between."""

import functools
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skuq import DeepEnsembleRegressor, backend
from skuq._messages import warn_user
from skuq.networks import MLP
from skuq.tables import TablePreprocessor


def files_of(caught, text):
    return [w.filename for w in caught if text in str(w.message)]


def test_warn_user_points_at_the_caller_of_an_estimator(table):
    X, y = table
    model = DeepEnsembleRegressor(1, network=MLP(2), epochs=1, random_state=0).fit(X, y)
    methods = (model.predict, model.predict_interval, model.predict_uncertainty)
    pipeline = make_pipeline(FunctionTransformer(), model)
    for call in (*methods, pipeline.predict):
        with pytest.warns(UserWarning, match="missing values in columns") as caught:
            call(np.where(X.max() > X, X, np.nan))
        assert files_of(caught, "missing values") == [__file__]


def test_warn_user_passes_over_scikit_learn(table):
    X, y = table
    model = DeepEnsembleRegressor(1, network=MLP(2), epochs=1, random_state=0)
    huge = np.where(np.arange(X.size).reshape(X.shape) == 3, 1e30, X)
    with pytest.warns(UserWarning, match="so far from all others") as caught:
        cross_val_score(model, huge, y, cv=2)
    assert files_of(caught, "so far from") == [__file__]


def test_warn_user_points_at_the_origin_without_a_user():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=TablePreprocessor().fit, args=([[1.0, np.nan]],))
        thread.start()
        thread.join()
    (file,) = files_of(caught, "hold missing values only")
    assert file.endswith("_preprocessing.py")


def test_warn_user_keeps_the_category():
    with pytest.warns(DeprecationWarning, match="soon") as caught:
        warn_user("soon", DeprecationWarning)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="from a thread") as caught:
        backend.run_in_threads([functools.partial(warn_user, "from a thread")])
    assert caught[0].filename == __file__


def test_warn_user_warns_in_a_session_without_a_file():
    """The module of such lines, as of `python -` and an interactive session, has no source."""
    code = "from skuq.tables import TablePreprocessor as T; T().fit([[1.0, None]])"
    run = [sys.executable, "-W", "always", "-"]
    done = subprocess.run(run, input=code, capture_output=True, text=True, check=True)
    assert "<stdin>:1: TableWarning: Columns ['x1'] hold missing values only" in done.stderr
