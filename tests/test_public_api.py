"""The public names, their documentation, and warnings, which point at the user's line."""

import functools
import importlib
import inspect
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from test_layout import RANKS

import skuq
from skuq import backend
from skuq._messages import warn_user
from skuq.networks import MLP
from skuq.tables import TablePreprocessor

TINY = {"n_members": 2, "network": MLP(2), "epochs": 1, "random_state": 0}


@pytest.mark.parametrize("package", sorted(set(RANKS) - {"backend", "fitted"}))
def test_parameters_are_documented_in_the_order_of_the_signature(package):
    docscrape = pytest.importorskip("numpydoc.docscrape")
    module = importlib.import_module(f"skuq.{package}")
    assert module.__all__
    for thing in filter(callable, (getattr(module, name) for name in module.__all__)):
        assert inspect.getdoc(thing), f"{thing} has no docstring"
        entries = docscrape.NumpyDocString(inspect.getdoc(thing))["Parameters"]
        # The first name of each entry: some describe several parameters.
        documented = [entry.name.split(",")[0].strip(" *") for entry in entries]
        parameters = inspect.signature(thing).parameters
        assert documented == [name for name in parameters if name in documented]


def test_names_versions_and_reprs_say_what_they_are(capsys, table):
    assert sum(name[0].isupper() for name in skuq.__all__) == 19
    assert {"load", "make_pipeline", "save"} <= set(skuq.__all__)
    assert skuq.__version__
    skuq.show_versions()
    shown = capsys.readouterr().out
    assert "python: 3" in shown and "numpy: " in shown and "  keras: " in shown
    model = skuq.DeepEnsembleRegressor(**TINY).fit(*table)
    assert repr(model.members_[0]).startswith("Member(12 weights, best epoch ")
    assert "members=<tuple of 2 Member>, weights=[0.5, 0.5]" in repr(model.fitted_)


def files_of(caught, text):
    return [w.filename for w in caught if text in str(w.message)]


def test_warn_user_points_at_the_caller_of_an_estimator_and_origin_without_a_user(table):
    X, y = table
    model = skuq.DeepEnsembleRegressor(**TINY).fit(X, y)
    methods = (model.predict, model.predict_interval, model.predict_uncertainty)
    pipeline = make_pipeline(FunctionTransformer(), model)
    for call in (*methods, pipeline.predict):
        with pytest.warns(UserWarning, match="missing values in columns") as caught:
            call(np.where(X.max() > X, X, np.nan))
        assert files_of(caught, "missing values") == [__file__]
    # And passes over scikit-learn.
    huge = np.where(np.arange(X.size).reshape(X.shape) == 3, 1e30, X)
    with pytest.warns(UserWarning, match="so far from all others") as caught:
        cross_val_score(skuq.DeepEnsembleRegressor(**TINY), huge, y, cv=2)
    assert files_of(caught, "so far from") == [__file__]
    with warnings.catch_warnings(record=True, action="always") as caught:
        thread = threading.Thread(target=TablePreprocessor().fit, args=([[1.0, np.nan]],))
        thread.start()
        thread.join()
    (file,) = files_of(caught, "hold missing values only")
    assert file.endswith("_preprocessing.py")


def test_warn_user_keeps_the_category_and_warns_without_a_file():
    with pytest.warns(DeprecationWarning, match="soon") as caught:
        warn_user("soon", DeprecationWarning)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="from a thread") as caught:
        backend.run_in_threads([functools.partial(warn_user, "from a thread")])
    assert caught[0].filename == __file__
    # The module of such lines, as of `python -` and an interactive session, has no source.
    code = "from skuq.tables import TablePreprocessor as T; T().fit([[1.0, None]])"
    run = [sys.executable, "-W", "always", "-"]
    done = subprocess.run(run, input=code, capture_output=True, text=True, check=True)
    assert "<stdin>:1: TableWarning: Columns ['x1'] hold missing values only" in done.stderr
