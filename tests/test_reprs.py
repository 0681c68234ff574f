"""Fitted attributes and records have representations that can be read."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import skuq
from skuq.files._registry import record_repr
from skuq.networks import MLP


def test_repr_of_members_says_what_they_are():
    X = np.linspace(-1, 1, 120).reshape(60, 2)
    network = MLP((8,))
    model = skuq.DeepEnsembleRegressor(2, network=network, epochs=3, random_state=0).fit(X, X[:, 0])
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
