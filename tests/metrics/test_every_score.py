"""Properties of every score: weights repeat rows, outputs are averaged."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skuq import metrics

N = 20


def draw(kind, rng, *outputs):
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


def sum_of(curve):
    return lambda *args, **kwargs: float(np.sum(curve(*args, **kwargs)[1:]))


KNOWN = {"labels": range(3)}
NUMBERS = [
    (metrics.gaussian_nll_loss, "normals"),
    (metrics.crps_loss, "normals"),
    (metrics.coverage_width_auc, "normals"),
    (metrics.nll_min_loss, "normals"),
    (metrics.calibration_error, "normals"),
    (metrics.mixture_nll_loss, "mixtures"),
    (metrics.crps_mixture_loss, "mixtures"),
    (metrics.coverage_score, "intervals"),
    (partial(metrics.interval_loss, coverage=0.8), "intervals"),
    (metrics.mean_width, "ends"),
    (partial(metrics.quantile_loss, probabilities=[0.3, 0.8]), "quantiles"),
]
OTHERS = [
    (metrics.retention_auc, "errors"),
    (lambda *a, **weight: metrics.error_retention_curve(*a, **weight)[1][-1], "errors"),
    (sum_of(metrics.coverage_width_curve), "normals"),
    (sum_of(metrics.quantile_calibration_curve), "normals"),
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
    given = draw(kind, rng)
    repeats = rng.integers(0, 4, size=N)  # 0 leaves a row out
    # Rows are the second axis of arrays of members, else the first.
    rows = (np.repeat(array, repeats, axis=0 if len(array) == N else 1) for array in given)
    expected = score(*rows)
    assert isinstance(expected, float)
    for factor in (1, 0.01):  # only ratios count
        assert_allclose(score(*given, sample_weight=factor * repeats), expected, rtol=1e-10)


@pytest.mark.parametrize(("score", "kind"), NUMBERS, ids=name_of)
def test_outputs_are_averaged(score, kind, rng):
    given = draw(kind, rng, 2)
    if score is metrics.mixture_nll_loss:
        # A joint density: of one member only is it the product of the marginals.
        given = given[0], *(part[:1] for part in given[1:])
    alone = [score(*(array[..., k] for array in given)) for k in range(2)]
    assert_allclose(score(*given), np.mean(alone))


@every_score
def test_bad_weights_and_masked_values_are_refused(score, kind, rng):
    given = draw(kind, rng)
    for weight in (np.ones(N + 1), -np.ones(N), np.zeros(N)):
        with pytest.raises(ValueError, match="sample_weight|Sample weights|[Nn]egative"):
            score(*given, sample_weight=weight)
    for k, array in enumerate(given):
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
    ("gaussian_nll_loss", np.ones((3, 1, 1, 1)), {}, "`y_true` must have shape"),
    ("crps_loss", (TWO, [[0.0], [1.0]], [1.0, 1.0]), {}, "`mean` must have the shape"),
    ("crps_loss", (ONE, TWO, TWO), {}, "inconsistent"),
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
        for given in ({"y_true": TWO, "mean": TWO}, {"y_true": TWO, "pit": TWO})
    ],
    ("calibration_error", (ONE, ONE, ONE), {"n_levels": 1}, "`n_levels` must be at least 2. Got 1"),
    ("calibration_error", (), {"pit": ONE, "n_levels": 9.5}, "`n_levels` .*Got 9.5"),
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
    ("disagreement_score", (MEMBERS + 0.1,), {}, "sum to 1"),
    ("retention_auc", (PROBA, PROBA), {}, r"`errors` must have shape \(n_samples,\)"),
    ("retention_auc", ([1.0], [np.inf]), {}, "`uncertainty` must be finite"),
]


@pytest.mark.parametrize(("score", "given", "keywords", "message"), REFUSED)
def test_bad_arguments_are_refused(score, given, keywords, message):
    with pytest.raises(ValueError, match=message):
        getattr(metrics, score)(*given, **keywords)
