import numpy as np
from numpy.testing import assert_allclose

from skuq.ensembles import architecture_diversity


def test_architecture_diversity_by_hand():
    # Distances 3, 4, 5: their norm is sqrt(50), their sum 12.
    assert_allclose(architecture_diversity([[0, 0], [3, 0], [0, 4]]), 12 / np.sqrt(50))
    assert architecture_diversity([[1, 2]]) == architecture_diversity([[1, 2], [1, 2]]) == 0
    rows = [[0, 0], [3, 0], [0, 4]]
    assert architecture_diversity(rows) == architecture_diversity(rows + rows)


def test_architecture_diversity_has_bounds(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    score = architecture_diversity(rng.integers(0, 100, size=(5, 9)))
    assert 1 <= score <= np.sqrt(10)
    assert_allclose(architecture_diversity(np.eye(5)), np.sqrt(10))  # all equally far apart
