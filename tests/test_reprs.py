"""Fitted attributes have representations that can be read, and copies are made quietly."""

import copy
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.naive_bayes import GaussianNB
from small_models import TinySpace, TooSure

import skuq
from skuq._utils._records import record_repr
from skuq.networks import MLP, NOMUNetwork, OperatorNetwork
from skuq.training import Training

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=60)
SMALL = {"network": MLP((8,)), "epochs": 3, "random_state": 0}
STEPS = Training(steps=5)
SHORT = {"epochs": 3, "random_state": 0}
POOL = [("a", GaussianNB()), ("b", GaussianNB(var_smoothing=1))]
OPERATOR = OperatorNetwork(encoder_units=8, latent=8, decoder_units=8)
FITTED = {
    "ensemble": (skuq.DeepEnsembleRegressor(2, **SMALL), Y),
    "nomu": (skuq.NOMURegressor(NOMUNetwork((8,)), epochs=3, refit=False, random_state=0), Y),
    "neon": (skuq.NEONRegressor(network=OPERATOR, training=STEPS, random_state=0), Y),
    "calibrated": (skuq.CalibratedUncertaintyRegressor(TooSure(), "conformal"), Y),
    "team": (skuq.HQEnsembleSelector(POOL), Y > 0),
    "search": (skuq.AutoDEUQRegressor(2, space=TinySpace(), validation=2, **SHORT), Y),
}


@pytest.fixture(scope="module", params=FITTED)
def model(request):
    model, y = FITTED[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(X, y)


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_copy_and_pickle_make_copies_without_warnings(model, protocol):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy deprecates ways to pickle its arrays
        twin = pickle.loads(pickle.dumps(model, protocol))
        copy.deepcopy(model)
        assert_array_equal(twin.predict(X), model.predict(X))


def test_repr_of_fitted_attributes_is_short(model):
    properties = {n for n in dir(type(model)) if n.endswith("_") and not n.startswith("_")}
    for attribute in {*vars(model), *properties}:
        value = getattr(model, attribute, None)
        if attribute.endswith("_") and not isinstance(value, np.ndarray):
            assert len(repr(value)) < 1000, f"{attribute}: {value!r}"
    assert len(repr(model.fitted_)) < 500


def test_repr_of_members_says_what_they_are():
    model = skuq.DeepEnsembleRegressor(2, **SMALL).fit(X, Y)
    assert repr(model.members_[0]).startswith("Member(42 weights, best epoch ")
    assert "members=<tuple of 2 Member>, weights=[0.5, 0.5]" in repr(model.fitted_)


def test_record_repr_describes_fields():
    @dataclass
    class Record:
        small: np.ndarray
        large: np.ndarray
        share: float
        text: str
        names: tuple
        thing: Any

        __repr__ = record_repr

    record = Record(np.arange(2), np.zeros((3, 4)), 1 / 3, "t" * 100, ("a", "b"), object())
    assert repr(record) == (
        "Record(small=[0, 1], large=<float64 array (3, 4)>, share=0.3333, text=<str>, "
        "names=('a', 'b'), thing=<object>)"
    )
