import numpy as np

from skuq.datasets import make_gapped_sine


def test_make_gapped_sine_is_the_papers_task():
    X, y = make_gapped_sine(40_000, random_state=0)
    again = make_gapped_sine(40_000, random_state=0)
    np.testing.assert_array_equal(np.c_[again], np.c_[X, y])
    x = X[:, 0]
    left = x < 0
    assert left.sum() == 20_000
    assert (x[left].min(), x[left].max()) > (-30, -20.1) and x[left].max() < -20
    assert x[~left].min() > 20 and x[~left].max() < 30
    noise = y - 2 * np.sin(x)
    # The standard error of a std of 1 from 20 000 draws is 0.005.
    np.testing.assert_allclose([noise[left].std(), noise[~left].std()], [0.5, 1.0], rtol=0.025)
