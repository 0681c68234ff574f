import pytest
from sklearn.base import BaseEstimator

import skuq
from skuq import all_estimators


def test_all_estimators_are_listed_by_name():
    found = dict(all_estimators())
    assert list(found) == sorted(found)
    assert found["NOMURegressor"] is skuq.NOMURegressor
    public = {name for name in skuq.__all__ if isinstance(getattr(skuq, name), type)}
    assert set(found) == public
    assert all(issubclass(cls, BaseEstimator) for cls in found.values())


def test_estimators_are_listed_by_kind():
    regressors, classifiers = all_estimators("regressor"), all_estimators(["classifier"])
    assert len(regressors) > 8 and len(classifiers) > 5
    assert not set(regressors) & set(classifiers)
    assert all(name.endswith("Regressor") for name, _ in regressors)
    assert all_estimators("transformer") == [("HQEnsembleSelector", skuq.HQEnsembleSelector)]
    both = all_estimators(["regressor", "classifier"])
    assert set(both) == {*regressors, *classifiers}
    with pytest.raises(ValueError, match=r"`type_filter` must be among .*\['cluster'\]"):
        all_estimators("cluster")
