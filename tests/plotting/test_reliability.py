import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB
from tiers import cases

from skuq.plotting import ReliabilityDisplay


def test_reliability_by_hand():
    proba = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]]
    display = ReliabilityDisplay.from_predictions([0, 0, 0, 1], proba, n_bins=4)
    # From 0.5 to 0.75: 0.6 and 0.7, both right. Above: 0.9 right, 0.8 wrong.
    assert_allclose(display.line_.get_xdata(), [0.65, 0.85])
    assert_allclose(display.line_.get_ydata(), [1, 0.5])
    assert [bar.get_height() for bar in display.bars_] == [0, 0, 2, 2]
    assert_allclose(display.ece, (0.35 + 0.35) / 2)


def test_reliability_quantile_bins_hold_equally_many(rng):
    proba = rng.dirichlet(np.ones(3), size=200)
    y = rng.integers(0, 3, size=200)
    display = ReliabilityDisplay.from_predictions(y, proba, n_bins=8, strategy="quantile")
    assert display.counts.tolist() == [25] * 8
    right = proba.argmax(axis=1) == y
    assert_allclose(np.average(display.accuracy, weights=display.counts), right.mean())


def test_reliability_of_labels_uses_the_order_of_classes():
    X, y = np.array([[0.0], [0.1], [1.0], [1.1]]), np.array(["b", "b", "a", "a"])
    display = ReliabilityDisplay.from_estimator(GaussianNB().fit(X, y), X, y)
    assert display.accuracy[display.counts > 0].tolist() == [1.0]
    assert display.name == "GaussianNB"


def test_reliability_counts_can_be_left_out():
    one = [0], [[0.7, 0.3]]
    display = ReliabilityDisplay.from_predictions(*one, labels=[0, 1], show_counts=False)
    assert display.bars_ is None and display.figure_.axes == [display.ax_]


@cases(
    "arguments, message",
    (([0], [0.7, 0.3]), "n_samples, n_classes"),
    (([0], [[0.7, 0.7]]), "sum to 1"),
    (([0], [[0.7, 0.3]], {"labels": [1]}), "2 columns"),
    (([0, 1], [[0.7, 0.3]] * 2, {"strategy": "even"}), "`strategy` must be one of"),
    (([0, 1], [[0.7, 0.3]] * 2, {"n_bins": 0}), "positive whole number. Got 0"),
)
def test_reliability_says_what_is_wrong(arguments, message):
    y, proba, *options = arguments
    with pytest.raises(ValueError, match=message):
        ReliabilityDisplay.from_predictions(y, proba, **dict(*options))


def test_reliability_needs_probabilities():
    with pytest.raises(TypeError, match="predict_proba"):
        ReliabilityDisplay.from_estimator(LinearRegression(), [[0.0]], [0])
