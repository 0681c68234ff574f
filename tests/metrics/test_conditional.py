import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skuq import metrics
from skuq.predictive import CategoricalMixture, GaussianMixture


def test_coverage_by_group_by_hand():
    y, low, high = np.array([0.0, 1, 5, 0, 9]), -np.ones(5), np.ones(5)
    labels, coverage, counts = metrics.coverage_by_group(y, low, high, ["b", "b", "a", "a", "b"])
    assert labels.tolist() == ["b", "a"]
    assert_allclose(coverage, [2 / 3, 1 / 2])
    assert_array_equal(counts, [3, 2])
    labels = pd.Series(2**60 + np.arange(4) % 2, dtype="Int64")
    found, _, counts = metrics.coverage_by_group(np.zeros(4), -np.ones(4), np.ones(4), labels)
    assert found.tolist() == [2**60, 2**60 + 1] and counts.tolist() == [2, 2]


def test_coverage_curve_by_hand():
    y = np.array([0.0, 5, 0, 0, 5, 5])
    by, ends = np.array([6.0, 5, 1, 2, 3, 4]), (-np.ones(6), np.ones(6))
    centers, coverage, counts = metrics.coverage_curve(y, *ends, by, n_bins=3)
    assert_allclose(centers, [1.5, 3.5, 5.5])
    assert_allclose(coverage, [1, 0, 0.5])
    assert_array_equal(counts, [2, 2, 2])
    # Rows of the same number stay together.
    _, coverage, counts = metrics.coverage_curve(y, *ends, [1, 1, 1, 2, 2, 2], n_bins=3)
    assert_array_equal(counts, [3, 3])
    # Dates are in order, too, but a missing one has no place in it.
    dates = np.array(["2020-06", "2020-05", "2020-01", "2020-02", "2020-03", "2020-04"], "M8[D]")
    _, of_dates, _ = metrics.coverage_curve(y, *ends, dates, n_bins=3)
    assert_allclose(of_dates, [1, 0, 0.5])
    dates[0] = "NaT"
    for missing in (dates, pd.Series(dates).dt.tz_localize("UTC")):
        with pytest.raises(ValueError, match="`by` must be finite"):
            metrics.coverage_curve(y, *ends, missing)


@pytest.mark.parametrize("n_values", [None, 6], ids=["distinct", "with ties"])
@pytest.mark.parametrize("min_share", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_worst_slab_is_the_worst_of_all_runs(n_values, min_share, seed):
    rng = np.random.default_rng(seed)
    x = rng.permutation(np.arange(80.0)) if n_values is None else rng.integers(n_values, size=80)
    y, ends = rng.normal(size=80), np.full(80, 0.8)
    settings = {"min_share": min_share, "n_directions": 0, "random_state": 3}
    found = metrics.worst_slab_coverage(y, -ends, ends, x[:, None], **settings)
    # Half of the rows choose among all runs of values of x, the others judge.
    chosen, judges = np.split(np.random.RandomState(3).permutation(80), 2)
    inside, values = abs(y) <= 0.8, np.unique(x[chosen])
    slabs = [(low, high) for low in values for high in values if low <= high]
    held = [chosen[(x[chosen] >= low) & (x[chosen] <= high)] for low, high in slabs]
    coverage = [inside[r].mean() if len(r) >= min_share * 40 else np.inf for r in held]
    judged = [judges[(x[judges] >= low) & (x[judges] <= high)] for low, high in slabs]
    worst = np.flatnonzero(np.isclose(coverage, min(coverage)))  # several may be as bad
    assert found in [inside[judged[k]].mean() for k in worst]


def test_worst_slab_finds_what_is_not_covered_and_nothing_else(rng):
    X = rng.normal(size=(2000, 3))
    y = rng.normal(size=2000)
    off = X @ [1.0, 1.0, 0.0] > 1.5  # one row in seven
    low, high = np.full(2000, -np.inf), np.full(2000, 1.2816)
    fair = metrics.worst_slab_coverage(y, low, high, X, random_state=0)
    assert 0.8 < fair < 0.95
    assert metrics.worst_slab_coverage(y, low, high - 2 * off, X, random_state=0) < 0.4
    X = np.arange(20.0)[:, None]
    order = np.random.RandomState(0).permutation(20)
    y = np.where(np.arange(20) == order[0], 5.0, 0.0)  # the only row outside is in the first half
    ends, settings = (y * 0 - 1, y * 0 + 1), {"n_directions": 0, "random_state": 0}
    assert np.isnan(metrics.worst_slab_coverage(y, *ends, X, **settings))


def test_neighbor_distance_refuses_other_columns():
    """Columns in another order would silently give other distances."""
    table = pd.DataFrame({"a": [0.0, 1.0], "b": [0.0, 9.0]})
    with pytest.raises(ValueError, match=r"columns of `X_reference`, \['a', 'b'\]"):
        metrics.neighbor_distance(table[["b", "a"]], table)


def test_features_other_than_finite_numbers_are_refused_with_a_way_out():
    table = pd.DataFrame({"a": [0.0, 1.0] * 10, "b": [0.0, 9.0] * 10})
    y, told = table["a"], "must hold finite numbers, .* `preprocessor_.transform` .*: "
    dates = pd.date_range("2020", periods=20)
    for other in (table.assign(c="u"), table.assign(c=dates), table.where(table > 0)):
        with pytest.raises(ValueError, match=f"`X` and `X_reference` {told}"):
            metrics.neighbor_distance(other, other)
        with pytest.raises(ValueError, match=f"^`X` {told}"):
            metrics.worst_slab_coverage(y, y - 1, y + 1, other)


def test_neighbor_distance_by_hand():
    reference = [[0.0, 5.0], [2.0, 5.0]]  # stds 1 and 0
    assert_allclose(metrics.neighbor_distance([[3.0, 5.0], [0.0, 9.0]], reference), [1, 4])
    assert_allclose(metrics.neighbor_distance([[3.0, 5.0]], reference, n_neighbors=2), [3])
    # The computed standard deviation of three times 0.1 is 1e-17.
    assert_allclose(metrics.neighbor_distance([[0.2]], np.full((3, 1), 0.1)), [0.1])
    # The squares of tiny numbers underflow.
    assert_allclose(metrics.neighbor_distance([[3.0]], [[1e-200], [2e-200]]), [3])


def test_martingale_by_hand():
    # Each new row is the largest so far: p = u / 4 and u / 5. A third of the wealth is on each bet,
    # so that the first row wins nothing, but moves wealth to the bet that was right.
    path = metrics.exchangeability_martingale([9.0, 9.5], [1.0, 2.0, 3.0], random_state=0)
    first, second = np.random.RandomState(0).uniform(size=2) / [4, 5]
    wealth = (1 + np.array([-1, 0, 1]) * (first - 0.5)) / 3
    wealth = 0.99 * wealth + 0.01 / 3
    expected = np.log(wealth @ (1 + np.array([-1, 0, 1]) * (second - 0.5)))
    assert expected > 0
    assert_allclose(path, [0, expected], atol=1e-12)


def test_epistemic_score_tells_rows_apart():
    loc = np.array([[0.0, 0.0, -1.0], [0.1, 0.1, 1.0]])
    score = metrics.epistemic_score(GaussianMixture(loc, np.ones((2, 3))))
    assert_allclose(score, np.log([0.05, 0.05, 1.0]))
    assert metrics.ood_auroc_score(score[:2], score[2:]) == 1
    certain = CategoricalMixture(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
    assert_allclose(metrics.epistemic_score(certain), np.log(2))
