"""Files that earlier versions have written: they must keep loading.

``python tests/persistence/test_formats.py`` writes those of the format that is the newest now.
Run it when the format changes, and keep the files of the formats before.
"""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from archives import with_tree
from numpy.testing import assert_allclose
from sklearn.exceptions import InconsistentVersionWarning

import skuq
from skuq._archive import FORMAT_VERSION
from skuq.networks import DenseSkipSpace
from skuq.persistence import dumps, loads

FILES = Path(__file__).parent / "files"
WRITTEN = sorted(path.stem for path in FILES.glob("*.skuq"))


def estimators():
    """Small fitted estimators by name, and the table that they were fitted on."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(40, 2)), columns=["a", "b"])
    y = X["a"] + 0.1 * rng.normal(size=40)
    table = X.assign(kind=rng.choice(["flat", "house", "tower"], 40))
    table.loc[::9, "b"] = np.nan
    small = {"epochs": 5, "random_state": 0}
    return {
        "deep_ensemble": (
            skuq.DeepEnsembleRegressor(2, hidden_units=4, **small).fit(table, y),
            table,
        ),
        "autodeuq": (
            skuq.AutoDEUQRegressor(3, search_space=DenseSkipSpace(1), **small).fit(X, y),
            X,
        ),
        "nomu": (
            skuq.NOMURegressor(hidden_units=4, c=1.0, l_min=0.1, l_max=2.0, **small).fit(X, y),
            X,
        ),
    }


def write_files():
    FILES.mkdir(exist_ok=True)
    for name, (estimator, X) in estimators().items():
        path = FILES / f"format_{FORMAT_VERSION}_{name}"
        skuq.save(estimator, path.with_suffix(".skuq"))
        mean, std = estimator.predict(X, return_std=True)
        # Columns one by one, as an array of all would be one of objects.
        columns = {f"X_{column}": X[column].to_numpy() for column in X}
        if "kind" in X:
            columns["X_kind"] = X["kind"].to_numpy(dtype="U")
        np.savez_compressed(path.with_suffix(".npz"), mean=mean, std=std, **columns)


@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_earlier_versions_load(name):
    with np.load(FILES / f"{name}.npz") as given:
        columns = {key[2:]: given[key] for key in given.files if key.startswith("X_")}
        expected = given["mean"], given["std"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InconsistentVersionWarning)
        estimator = skuq.load(FILES / f"{name}.skuq")
    found = estimator.predict(pd.DataFrame(columns), return_std=True)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_the_newest_format_is_among_them():
    assert {name.rpartition("format_")[2].partition("_")[0] for name in WRITTEN} == {
        str(version + 1) for version in range(FORMAT_VERSION)
    }


def test_parameters_and_fields_that_are_newer_than_the_file():
    data = dumps(skuq.DeepEnsembleRegressor(7))

    def older(tree):
        state = tree["tree"]["state"]
        del state["n_copies"], state["target_transform"]
        return tree

    loaded = loads(with_tree(data, older))
    assert (loaded.n_members, loaded.n_copies, loaded.target_transform) == (7, 1, "standard")

    space = dumps(skuq.NESRegressor(search_space=DenseSkipSpace(2, max_batch_size=8)))

    def without_a_field(tree):
        del tree["tree"]["state"]["search_space"]["state"]["max_batch_size"]
        return tree

    assert loads(with_tree(space, without_a_field)).search_space == DenseSkipSpace(2)


if __name__ == "__main__":
    write_files()
