"""Properties of every score, and scores against other libraries and values by hand."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, special, stats
from scipy.spatial.distance import pdist
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, brier_score_loss, log_loss

from skuq import metrics
from skuq.predictive import GaussianMixture

N = 20


def data_of(kind, rng, *outputs):
    shape, members = (N, *outputs), (3, N, *outputs)
    y, std, codes = rng.normal(size=shape), rng.uniform(0.2, 2, shape), rng.integers(3, size=N)
    return {
        "normals": (y, rng.normal(size=shape), std),
        "mixtures": (y, rng.normal(size=members), rng.uniform(0.2, 2, members)),
        "intervals": (rng.normal(size=shape), y, y + std),
        "ends": (y, y + std),
        "quantiles": (y, rng.normal(size=(N, 2, *outputs))),
        "errors": (rng.exponential(size=N), rng.integers(5, size=N)),
        "classes": (codes, rng.dirichlet(np.ones(3), N)),
        "members": (codes, rng.dirichlet(np.ones(3), (4, N))),
        "probabilities": (rng.dirichlet(np.ones(3), (4, N)),),
    }[kind]


def of_mixture(loss, y, *parameters, **weight):
    return loss(y, GaussianMixture(*parameters), **weight)


def normal_crps(y, mean, std, **weight):
    return mixture_crps(y, mean[None], std[None], **weight)


mixture_nll, mixture_crps = (partial(of_mixture, f) for f in (metrics.nll_loss, metrics.crps_loss))
KNOWN = {"labels": range(3)}
NUMBERS = [
    (metrics.gaussian_nll_loss, "normals"),
    (normal_crps, "normals"),
    (metrics.coverage_width_auc, "normals"),
    (metrics.nll_min_loss, "normals"),
    (metrics.calibration_error, "normals"),
    (mixture_nll, "mixtures"),
    (mixture_crps, "mixtures"),
    (metrics.coverage_score, "intervals"),
    (partial(metrics.interval_loss, coverage=0.8), "intervals"),
    (metrics.mean_width, "ends"),
    (partial(metrics.quantile_loss, probabilities=[0.3, 0.8]), "quantiles"),
]
OTHERS = [
    (metrics.retention_auc, "errors"),
    (lambda *a, **weight: metrics.error_retention_curve(*a, **weight)[1][-1], "errors"),
    (lambda *a, **keys: metrics.quantile_calibration_curve(*a, **keys)[1].sum(), "normals"),
    (partial(metrics.brier_loss, **KNOWN), "classes"),
    (partial(metrics.ece_loss, **KNOWN), "classes"),
    (partial(metrics.ensemble_nll_loss, **KNOWN), "members"),
    (partial(metrics.average_member_nll_loss, **KNOWN), "members"),
    (partial(metrics.oracle_nll_loss, **KNOWN), "members"),
    (metrics.disagreement_score, "probabilities"),
]


def name_of(value):
    name = getattr(getattr(value, "func", value), "__name__", value)
    return name if isinstance(name, str) else None


every_score = pytest.mark.parametrize(("score", "kind"), NUMBERS + OTHERS, ids=name_of)


@every_score
def test_weights_are_repeated_rows(score, kind, global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    given = data_of(kind, rng)
    repeats = rng.integers(0, 4, size=N)  # 0 leaves a row out
    # Rows are the second axis of arrays of members, else the first.
    rows = (np.repeat(array, repeats, axis=0 if len(array) == N else 1) for array in given)
    expected = score(*rows)
    assert isinstance(expected, float)
    for factor in (1, 0.01):  # only ratios count
        assert_allclose(score(*given, sample_weight=factor * repeats), expected, rtol=1e-10)


@pytest.mark.parametrize(("score", "kind"), NUMBERS, ids=name_of)
def test_outputs_are_averaged(score, kind, rng):
    given = data_of(kind, rng, 2)
    if score is mixture_nll:
        # A joint density: of one member only is it the product of the marginals.
        given = given[0], *(part[:1] for part in given[1:])
    alone = [score(*(array[..., k] for array in given)) for k in range(2)]
    assert_allclose(score(*given), np.mean(alone))


@every_score
def test_bad_weights_and_masked_values_are_refused(score, kind, rng):
    given = data_of(kind, rng)
    for weight in (np.ones(N + 1), -np.ones(N), np.zeros(N)):
        with pytest.raises(ValueError, match="sample_weight|Sample weights|[Nn]egative"):
            score(*given, sample_weight=weight)
    # A distribution checks what it is made of.
    of_distribution = score in (mixture_nll, mixture_crps, normal_crps)
    for k, array in enumerate(given[:1] if of_distribution else given):
        masked = np.ma.masked_array(array, mask=np.zeros(array.shape, dtype=bool))
        masked[-1, ...] = np.ma.masked
        with pytest.raises(ValueError, match="NaN|no label|labels"):
            score(*given[:k], masked, *given[k + 1 :])


ONE, TWO = np.ones(1), np.arange(2.0)
PROBA, LABELS = np.full((3, 4), 0.25), np.arange(3)
MEMBERS, FOUR = np.stack([PROBA, PROBA, PROBA]), {"labels": range(4)}
#: Score, arguments, keywords, and what the error says.
REFUSED = [
    ("gaussian_nll_loss", ([0.0], [0.0], [0.0]), {}, "`std` must be positive"),
    ("gaussian_nll_loss", ([0.0], [0.0], [np.nan]), {}, "`std` must be finite"),
    ("gaussian_nll_loss", ([], [], []), {}, "`y_true` must have at least one row"),
    ("gaussian_nll_loss", np.ones((3, 1, 1, 1, 1)), {}, "`y_true` must have shape"),
    ("crps_loss", (TWO, GaussianMixture([[0.0] * 3], [[1.0] * 3])), {}, "inconsistent numbers"),
    ("nll_loss", ([[0]], GaussianMixture([[TWO]], [[1 + TWO]])), {}, "must have the shape of mean"),
    ("nll_min_loss", (TWO, [[0.0], [1.0]], [1.0, 1.0]), {}, "`mean` must have the shape"),
    ("nll_min_loss", (ONE, TWO, TWO), {}, "inconsistent"),
    ("crps_loss", (["a"], None), {}, "`y_true` must be numbers: could not convert .*'a'"),
    ("crps_loss", (np.array(["2020"], "M8[D]"), None), {}, "`y_true` must hold numbers. Got dates"),
    ("coverage_score", ([0.0], [np.nan], [1.0]), {}, "`lower` must be numbers. Got NaN"),
    ("mean_width", ([0.0, 2.0], [1.0, 1.0]), {}, "in 1 rows, first in row 1: 2.0 and 1.0"),
    # The difference of infinite numbers is NaN.
    ("interval_loss", ([np.inf], [0.0], [np.inf], 0.9), {}, "`y_true` must be finite"),
    ("interval_loss", ([0.0], [0.0], [1.0], 90), {}, r"`coverage` .* in \(0, 1\). Got 90"),
    ("quantile_loss", ([0.0], [[0.0]], [0.1, 0.9]), {}, r"`y_quantiles` .* \(1, 2\). Got \(1, 1\)"),
    ("quantile_loss", ([0.0], [[0.0]], [1.0]), {}, "`probabilities` must be"),
    ("calibration_error", (), {"y_true": TWO, "mean": TWO}, "Give either `y_true`, `mean` and `st"),
    ("calibration_error", (), {"y_true": TWO, "pit": TWO}, "Give either .* and `std`, or `pit`"),
    ("calibration_error", (ONE, ONE, ONE), {"n_levels": 1}, "`n_levels` must be at least 2. Got 1"),
    ("calibration_error", (), {"pit": [0.5, 1.5]}, r"`pit` .* in \[0, 1\].*0.5 to 1.5"),
    ("ece_loss", (LABELS, PROBA[:, 0]), {}, r"`proba` must have shape \(n_samples, n_classes\)"),
    ("ece_loss", (LABELS[:2], PROBA), {}, "`y_true` must have 3 rows"),
    ("ece_loss", (LABELS, PROBA), {}, "name the 4 columns.*give all classes as `labels`"),
    ("ece_loss", (LABELS, PROBA), {"labels": [0, 1, 7, 9]}, r"not in `labels`: \[2\]"),
    ("ece_loss", (LABELS, PROBA), {"labels": [0, 1, 2, 2]}, r"`labels` .*Got \[0, 1, 2, 2\]"),
    ("ece_loss", (LABELS, PROBA), {"labels": range(4), "n_bins": 2.5}, "number. Got 2.5"),
    ("brier_loss", (LABELS, PROBA / 2), {}, "non-negative and sum to 1.*0.5"),
    ("ensemble_nll_loss", (LABELS, PROBA), {}, r"`member_proba` .* \(n_members, n_samp"),
    ("average_member_nll_loss", (LABELS, MEMBERS, [1.0] * 3), FOUR, "`weights` must be 3 non-neg"),
    ("disagreement_score", ([0, 1, 2, 3],), {}, r"`members` must be labels .*Got shape \(4,\)"),
    ("retention_auc", (PROBA, PROBA), {}, r"`errors` must have shape \(n_samples,\)"),
    ("retention_auc", ([1.0], [np.inf]), {}, "`uncertainty` must be finite"),
]


@pytest.mark.parametrize(("score", "given", "keywords", "message"), REFUSED)
def test_bad_arguments_are_refused(score, given, keywords, message):
    with pytest.raises(ValueError, match=message):
        getattr(metrics, score)(*given, **keywords)


def test_nll_is_scipys_and_crps_is_scoringrules(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    (y, mean, std), loss = data_of("normals", rng), metrics.gaussian_nll_loss
    assert_allclose(loss(y, mean, std), -stats.norm(mean, std).logpdf(y).mean())
    found = optimize.minimize_scalar(lambda log_c: loss(y, mean, np.exp(log_c) * std))
    assert_allclose(metrics.nll_min_loss(y, mean, std), found.fun, rtol=1e-9)
    assert metrics.nll_min_loss(y, y, std) == -np.inf
    # Bounds reach the targets at c = 1, 2 and 4; the mean width is 2 c. Steps of 1/3.
    y, std = np.array([1.0, 1.0, 6.0]), np.array([1.0, 0.5, 1.5])
    assert_allclose(metrics.coverage_width_auc(y, 0 * y, std), (2 + 4 + 8) / 3)
    (y, loc, scale), weights = data_of("mixtures", rng, 2), rng.dirichlet(np.ones(3))
    joint = stats.norm(loc, scale).logpdf(y).sum(axis=2)
    expected = -special.logsumexp(joint, axis=0, b=weights[:, None]).mean() / 2
    assert_allclose(mixture_nll(y, loc, scale, weights), expected)
    # Both densities underflow: log of half a normal density at 100, the other is nothing.
    expected = np.log(2) - stats.norm.logpdf(100)
    assert_allclose(mixture_nll([100.0], [[0.0], [-50.0]], np.ones((2, 1))), expected)
    scoringrules = pytest.importorskip("scoringrules")
    members = (np.moveaxis(part, 0, -1) for part in (loc, scale))
    expected = scoringrules.crps_mixnorm(y, *members, np.broadcast_to(weights, (N, 2, 3)))
    assert_allclose(mixture_crps(y, loc, scale, weights), expected.mean(), rtol=1e-6)
    y, mean, std = data_of("normals", rng, 2)
    assert_allclose(normal_crps(y, mean, std), scoringrules.crps_normal(y, mean, std).mean())


def test_intervals_and_quantiles_by_hand_and_of_scoringrules(rng):
    assert metrics.coverage_score([0, 1, 2], [0, 0, 0], [1, 1, 1]) == pytest.approx(2 / 3)
    assert metrics.coverage_score([0.0, 1.0], [-np.inf, 2.0], [np.inf, 3.0]) == 0.5
    assert metrics.mean_width([-np.inf], [0.0]) == np.inf
    lower, upper = [-np.inf, 0.0], [np.inf, 1.0]
    assert metrics.mean_width(lower, upper, sample_weight=[0, 1]) == 1
    assert metrics.interval_loss([0.5, 0.5], lower, upper, 0.9, sample_weight=[0, 1]) == 1
    assert metrics.mean_width([0.0, 0.0], [1.0, 3.0], sample_weight=[1e308, 1e308]) == 2
    scoringrules = pytest.importorskip("scoringrules")
    y, centre, half = 2 * rng.normal(size=(3, 40, 2))
    ends = centre - abs(half), centre + abs(half)
    for coverage in (0.5, 0.9):
        expected = scoringrules.interval_score(y, *ends, 1 - coverage).mean()
        assert_allclose(metrics.interval_loss(y, *ends, coverage), expected)
    quantiles, levels = rng.normal(size=(40, 3, 2)), [0.1, 0.5, 0.7]
    pairs = zip(np.moveaxis(quantiles, 1, 0), levels)
    expected = np.mean([scoringrules.quantile_score(y, *pair) for pair in pairs])
    assert_allclose(metrics.quantile_loss(y, quantiles, levels), expected)


def test_calibration_curve_and_error_are_uncertainty_toolboxs(global_random_seed):
    toolbox = pytest.importorskip("uncertainty_toolbox.metrics_calibration")
    y, mean, std = data_of("normals", np.random.default_rng(global_random_seed))
    # Its quantile levels are counted from above.
    given, keywords = (y, std, mean), {"prop_type": "quantile", "num_bins": 100}
    expected = toolbox.get_proportion_lists_vectorized(*given, **keywords)
    curve = metrics.quantile_calibration_curve(y, mean, std, n_levels=100)
    assert_allclose(curve, expected, atol=1e-12)
    expected = toolbox.mean_absolute_calibration_error(*given, **keywords)
    for given in ({"y_true": y, "mean": mean, "std": std}, {"pit": stats.norm(mean, std).cdf(y)}):
        assert_allclose(metrics.calibration_error(**given, n_levels=100), expected)


def test_brier_and_ece_are_sklearns(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    proba = rng.dirichlet(0.6 * np.ones(4), size=300)
    y = (rng.uniform(size=(300, 1)) > proba.cumsum(axis=1)).sum(axis=1)
    y = np.where(rng.uniform(size=300) < 0.2, rng.integers(4, size=300), y)
    assert_allclose(metrics.brier_loss(y, proba), ((proba - np.eye(4)[y]) ** 2).sum(axis=1).mean())
    two = proba[:, :2] / proba[:, :2].sum(axis=1, keepdims=True)
    assert_allclose(metrics.brier_loss(y % 2, two), 2 * brier_score_loss(y % 2, two[:, 1]))
    correct, confidence = proba.argmax(axis=1) == y, proba.max(axis=1)
    for n_bins in (1, 10, 15):
        # The curve has no points for empty bins.
        accuracy, mean = calibration_curve(correct, confidence, n_bins=n_bins)
        counts = np.bincount(np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], confidence))
        expected = np.average(np.abs(accuracy - mean), weights=counts[counts > 0])
        assert_allclose(metrics.ece_loss(y, proba, n_bins=n_bins), expected)
    # Confidences 0.5 and 0.6 are in different halves: gaps 0.5 right and 0.6 wrong.
    assert_allclose(metrics.ece_loss([0, 1], [[0.5, 0.5], [0.6, 0.4]], n_bins=2), 0.55)
    for loss in (metrics.brier_loss, metrics.ece_loss):  # Labels may be anything in any order.
        names, order = np.array(["cat", "dog", "eel", "fox"]), [2, 0, 3, 1]
        assert loss(list(names[y].astype(object)), proba) == (expected := loss(y, proba))
        assert_allclose(loss(names[y], proba[:, order], labels=names[order]), expected)
        k = y != 3  # A class that has no row.
        assert loss(y[k], proba[k], labels=range(4)) == loss(names[y[k]], proba[k], labels=names)


def test_losses_and_disagreement_of_members(rng):
    y, members = rng.integers(4, size=50), rng.dirichlet(np.ones(4), (3, 50))
    weights = np.array([0.5, 0.3, 0.2])
    average = metrics.average_member_nll_loss(y, members, weights)
    assert_allclose(average, weights @ [log_loss(y, proba) for proba in members])
    expected = log_loss(y, np.tensordot(weights, members, axes=1))
    assert_allclose(metrics.ensemble_nll_loss(y, members, weights), expected)
    best = members[members[:, np.arange(50), y].argmax(axis=0), np.arange(50)]
    assert_allclose(metrics.oracle_nll_loss(y, members), log_loss(y, best))
    # A probability of 0 is cut off as scikit-learn does.
    members = np.array([[[0.0, 1.0]], [[0.0, 1.0]]])
    expected = log_loss([0], members[0], labels=[0, 1])
    for name in ("oracle_nll_loss", "ensemble_nll_loss", "average_member_nll_loss"):
        assert_allclose(getattr(metrics, name)([0], members, labels=[0, 1]), expected)
    members = rng.dirichlet(np.ones(4), (5, 50))  # Disagreement is the mean Hamming distance.
    for given in (members, np.array(list("abcd"))[labels := members.argmax(axis=2)]):
        assert_allclose(metrics.disagreement_score(given), pdist(labels, "hamming").mean())


def test_retention_area_is_sklearns_and_an_average_over_orders_of_ties(rng):
    errors, uncertainty = rng.exponential(size=40), rng.uniform(size=40)
    curve = metrics.error_retention_curve(errors, uncertainty)
    assert_allclose(metrics.retention_auc(errors, uncertainty), auc(*curve))
    curve = metrics.error_retention_curve([3.0, 1.0, 2.0, 2.0], [0.9, 0.1, 0.5, 0.2])
    assert_allclose(curve, ([0, 0.25, 0.5, 0.75, 1], [0, 0.25, 0.75, 1.25, 2]))
    area, errors = metrics.retention_auc, rng.exponential(size=12)
    uncertainty = np.repeat([1.0, 2.0, 3.0], 4)
    orders = [area(errors, uncertainty + 1e-9 * rng.uniform(size=12)) for _ in range(2000)]
    assert_allclose(area(errors, uncertainty), np.mean(orders), rtol=1e-2)
    assert_allclose(area(errors, np.ones(12)), errors.mean() / 2)
