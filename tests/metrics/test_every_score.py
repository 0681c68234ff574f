"""Properties of every score: weights repeat rows, outputs are averaged."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skuq import metrics

N = 20


def normals(rng, *outputs):
    return rng.normal(size=(N, *outputs)), rng.normal(size=(N, *outputs)), stds(rng, *outputs)


def stds(rng, *outputs):
    return rng.uniform(0.2, 2, (N, *outputs))


def mixtures(rng, *outputs):
    shape = (3, N, *outputs)
    return rng.normal(size=shape[1:]), rng.normal(size=shape), rng.uniform(0.2, 2, shape)


def intervals(rng, *outputs):
    lower = rng.normal(size=(N, *outputs))
    return lower, lower + stds(rng, *outputs)


def y_and_intervals(rng, *outputs):
    return rng.normal(size=(N, *outputs)), *intervals(rng, *outputs)


def quantiles(rng, *outputs):
    return rng.normal(size=(N, *outputs)), rng.normal(size=(N, 2, *outputs))


def two_lists(rng):
    return rng.exponential(size=N), rng.integers(5, size=N)


def classes(rng):
    return rng.integers(3, size=N), rng.dirichlet(np.ones(3), N)


def members(rng):
    return rng.integers(3, size=N), rng.dirichlet(np.ones(3), (4, N))


def curve_end(*args, **kwargs):
    return metrics.error_retention_curve(*args, **kwargs)[1][-1]


KNOWN = {"labels": range(3)}
NUMBERS = [
    (metrics.gaussian_nll_loss, normals),
    (metrics.crps_loss, normals),
    (metrics.coverage_width_auc, normals),
    (metrics.nll_min_loss, normals),
    (metrics.calibration_error, normals),
    (metrics.mixture_nll_loss, mixtures),
    (metrics.crps_mixture_loss, mixtures),
    (metrics.coverage_score, y_and_intervals),
    (partial(metrics.interval_loss, coverage=0.8), y_and_intervals),
    (metrics.mean_width, intervals),
    (partial(metrics.quantile_loss, probabilities=[0.3, 0.8]), quantiles),
]
OTHERS = [
    (metrics.retention_auc, two_lists),
    (curve_end, two_lists),
    (partial(metrics.brier_loss, **KNOWN), classes),
    (partial(metrics.ece_loss, **KNOWN), classes),
    (partial(metrics.ensemble_nll_loss, **KNOWN), members),
    (partial(metrics.average_member_nll_loss, **KNOWN), members),
    (partial(metrics.oracle_nll_loss, **KNOWN), members),
    (metrics.disagreement_score, lambda rng: (members(rng)[1],)),
]


def name_of(value):
    return getattr(getattr(value, "func", value), "__name__", "")


def rows_of(array, rows):
    # Rows are the second axis of arrays of members, else the first.
    return array[rows] if len(array) == N else array[:, rows]


@pytest.mark.parametrize(("score", "data"), NUMBERS + OTHERS, ids=name_of)
def test_weights_are_repeated_rows(score, data, global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    given = data(rng)
    repeats = rng.integers(0, 4, size=N)  # 0 leaves a row out
    rows = np.repeat(np.arange(N), repeats)
    expected = score(*(rows_of(array, rows) for array in given))
    assert_allclose(score(*given, sample_weight=repeats), expected, rtol=1e-10)
    # Only ratios count.
    assert_allclose(score(*given, sample_weight=0.01 * repeats), expected, rtol=1e-10)
    unweighted = score(*given)
    assert isinstance(unweighted, float)
    assert_allclose(score(*given, sample_weight=np.full(N, 0.3)), unweighted, rtol=1e-10)


@pytest.mark.parametrize(("score", "data"), NUMBERS, ids=name_of)
def test_outputs_are_averaged(score, data):
    given = data(np.random.default_rng(0), 2)
    if score is metrics.mixture_nll_loss:
        # A joint density: of one member only is it the product of the marginals.
        given = given[0], *(part[:1] for part in given[1:])
    alone = [score(*(array[..., k] for array in given)) for k in range(2)]
    assert_allclose(score(*given), np.mean(alone))


@pytest.mark.parametrize(("score", "data"), NUMBERS + OTHERS, ids=name_of)
def test_bad_weights_are_refused(score, data):
    given = data(np.random.default_rng(0))
    with pytest.raises(ValueError, match="sample_weight"):
        score(*given, sample_weight=np.ones(N + 1))
    with pytest.raises(ValueError, match="[Nn]egative"):
        score(*given, sample_weight=-np.ones(N))
    with pytest.raises(ValueError, match="sample_weight|Sample weights"):
        score(*given, sample_weight=np.zeros(N))


@pytest.mark.parametrize(("score", "data"), NUMBERS + OTHERS, ids=name_of)
def test_masked_values_are_refused(score, data):
    given = data(np.random.default_rng(0))
    for k, array in enumerate(given):
        masked = np.ma.masked_array(array, mask=np.zeros(array.shape, dtype=bool))
        masked[-1, ...] = np.ma.masked
        with pytest.raises(ValueError, match="NaN|no label|labels"):
            score(*given[:k], masked, *given[k + 1 :])


ONE, TWO, TABLE = np.ones(1), np.arange(2.0), np.arange(12.0).reshape(6, 2)
PROBA, LABELS = np.full((3, 4), 0.25), np.arange(3)
MEMBERS, FOUR = np.stack([PROBA, PROBA, PROBA]), {"labels": range(4)}
#: Score, arguments, keywords, and what the error says.
REFUSED = [
    ("gaussian_nll_loss", ([0.0], [0.0], [0.0]), {}, "`std` must be positive"),
    ("gaussian_nll_loss", ([0.0], [0.0], [np.nan]), {}, "`std` must be finite"),
    ("gaussian_nll_loss", ([], [], []), {}, "`y_true` must have at least one row"),
    ("gaussian_nll_loss", np.ones((3, 1, 1, 1)), {}, "`y_true` must have shape"),
    ("crps_loss", (TWO, [[0.0], [1.0]], [1.0, 1.0]), {}, "`mean` must have the shape"),
    ("crps_loss", (ONE, TWO, [0.0, 1.0]), {}, "inconsistent"),
    ("crps_loss", (["a"], ONE, ONE), {}, "`y_true` must be numbers: could not convert .*'a'"),
    ("mixture_nll_loss", (TWO, [[0.0], [1.0]], [ONE, ONE]), {}, r"`loc` .*here \(n_members, 2\)"),
    ("crps_mixture_loss", ([0.0], [[0.0]], [[-1.0]]), {}, "`scale` must be positive. .* is -1.0"),
    *[
        ("mixture_nll_loss", (ONE, [ONE] * 2, [ONE] * 2, weights), {}, "be 2 non-negative numbers")
        for weights in ([0.5, 0.6], [1.5, -0.5], [1.0])
    ],
    ("coverage_width_curve", np.ones((3, 4, 2)), {}, r"shape \(n_samples,\).*Got \(4, 2\)"),
    ("coverage_score", ([0.0], [np.nan], [1.0]), {}, "`lower` must be numbers. Got NaN"),
    ("mean_width", ([0.0, 2.0], [1.0, 1.0]), {}, "in 1 rows, first in row 1: 2.0 and 1.0"),
    # The difference of infinite numbers is NaN.
    ("interval_loss", ([np.inf], [0.0], [np.inf], 0.9), {}, "`y_true` must be finite"),
    ("interval_loss", ([0.0], [0.0], [1.0], 90), {}, r"`coverage` .* in \(0, 1\). Got 90"),
    ("quantile_loss", ([0.0], [[0.0]], [0.1, 0.9]), {}, r"`y_quantiles` .* \(1, 2\). Got \(1, 1\)"),
    ("quantile_loss", ([0.0], [[0.0]], [1.0]), {}, "`probabilities` must be"),
    *[
        ("calibration_error", (), given, "Give either `y_true`, `mean` and `std`, or `pit`")
        for given in ({}, {"y_true": TWO, "mean": TWO}, {"y_true": TWO, "pit": TWO})
    ],
    ("calibration_error", (ONE, ONE, ONE), {"n_levels": 1}, "`n_levels` must be at least 2. Got 1"),
    ("calibration_error", (), {"pit": [0.5, 1.5]}, r"`pit` .* in \[0, 1\].*0.5 to 1.5"),
    ("ece_loss", (LABELS, PROBA[:, 0]), {}, r"`proba` must have shape \(n_samples, n_classes\)"),
    ("brier_loss", (LABELS, PROBA / 2), {}, "non-negative and sum to 1.*0.5"),
    ("ece_loss", (LABELS[:2], PROBA), {}, "`y_true` must have 3 rows"),
    ("ece_loss", (LABELS, PROBA), {}, "name the 4 columns.*give all classes as `labels`"),
    ("ece_loss", (LABELS, PROBA), {"labels": [0, 1, 7, 9]}, r"not in `labels`: \[2\]"),
    ("ece_loss", (LABELS, PROBA), {"labels": [0, 1, 2, 2]}, r"`labels` .*Got \[0, 1, 2, 2\]"),
    ("ece_loss", (LABELS, PROBA), {"labels": range(4), "n_bins": 2.5}, "number. Got 2.5"),
    ("calibration_error", (), {"pit": ONE, "n_levels": 9.5}, "`n_levels` .*Got 9.5"),
    ("ensemble_nll_loss", (LABELS, PROBA), {}, r"`member_proba` .* \(n_members, n_samp"),
    ("average_member_nll_loss", (LABELS, MEMBERS, [1.0] * 3), FOUR, "`weights` must be 3 non-neg"),
    ("disagreement_score", ([0, 1, 2, 3],), {}, r"`members` must be labels .*Got shape \(4,\)"),
    ("disagreement_score", (MEMBERS + 0.1,), {}, "sum to 1"),
    ("retention_auc", (TABLE, TABLE), {}, r"`errors` must have shape \(n_samples,\)"),
    ("retention_auc", ([1.0], [np.inf]), {}, "`uncertainty` must be finite"),
]


@pytest.mark.parametrize(("score", "given", "keywords", "message"), REFUSED)
def test_bad_arguments_are_refused(score, given, keywords, message):
    with pytest.raises(ValueError, match=message):
        getattr(metrics, score)(*given, **keywords)


@pytest.mark.parametrize("name", ["coverage_width_curve", "quantile_calibration_curve"])
def test_weights_of_curves_are_repeated_rows(name):
    rng, curve = np.random.default_rng(0), getattr(metrics, name)
    given, repeats = normals(rng), rng.integers(0, 4, size=N)
    expected = curve(*(np.repeat(array, repeats, axis=0) for array in given))
    for found, wanted in zip(curve(*given, sample_weight=repeats), expected):
        assert_allclose(found, wanted, rtol=1e-12)
