import numpy as np
import pytest
from numpy.testing import assert_allclose

from skuq._keras import keras
from skuq.training import Recipe


def test_constant_rates():
    np.testing.assert_array_equal(Recipe().rate_factors(3, 4, 100), np.ones(4))


def test_cosine_and_exponential_are_keras_own():
    schedules = keras.optimizers.schedules
    steps = np.arange(50)
    for recipe, theirs in (
        (
            Recipe(schedule="cosine", final_lr_factor=0.1),
            schedules.CosineDecay(1.0, decay_steps=50, alpha=0.1),
        ),
        (
            Recipe(schedule="exponential", final_lr_factor=0.1),
            schedules.ExponentialDecay(1.0, decay_steps=50, decay_rate=0.1),
        ),
    ):
        expected = [float(theirs(step)) for step in steps]
        assert_allclose(recipe.rate_factors(0, 50, 50), expected, rtol=1e-5)
        # A run in slices goes on where it was.
        parts = [recipe.rate_factors(a, 10, 50) for a in range(0, 50, 10)]
        assert_allclose(np.concatenate(parts), expected, rtol=1e-5)


def test_warmup_rises_linearly_from_the_first_step_on():
    factors = Recipe(warmup=0.2, schedule="cosine").rate_factors(0, 50, 50)
    assert_allclose(factors[:10], np.arange(1, 11) / 10)
    assert factors.argmax() in (9, 10) and (np.diff(factors[10:]) < 0).all()
    assert factors[-1] < 0.02


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schedule", "linear"),
        ("keep", "first"),
        ("warmup", 1.5),
        ("clip_norm", 0.0),
        ("l2", -1.0),
        ("weight_decay", np.inf),
        ("dropout", 1.0),
        ("adversarial_epsilon", -0.1),
        ("final_lr_factor", 0.0),
        ("momentum", 1.0),
        ("momentum", 0.5),  # of adam, which has its own
        ("early_stopping_patience", 0),
    ],
)
def test_bad_recipes_are_refused(field, value):
    with pytest.raises(ValueError, match=rf"`{field}`.*Got"):
        Recipe(**{field: value})
