import numpy as np
import pytest
from numpy.testing import assert_allclose
from tiers import cases

from skuq.backend import keras
from skuq.training import Recipe


def test_schedules_are_keras_own():
    schedules, steps = keras.optimizers.schedules, np.arange(50)
    cosine = schedules.CosineDecay(1.0, decay_steps=50, alpha=0.1)
    exponential = schedules.ExponentialDecay(1.0, decay_steps=50, decay_rate=0.1)
    half = schedules.CosineDecay(1.0, decay_steps=25)  # in the second half, to 0
    for name, theirs in (
        ("cosine", cosine),
        ("exponential", exponential),
        ("flat-cosine", lambda step: half(max(step - 25, 0))),
    ):
        recipe = Recipe(schedule=name, final_lr_factor=0.1)
        expected = [float(theirs(step)) for step in steps]
        assert_allclose(recipe.rate_factors(0, 50, 50), expected, rtol=1e-5, atol=1e-7)
        # A run in slices goes on where it was.
        assert_allclose(recipe.rate_factors(30, 10, 50), expected[30:40], rtol=1e-5)


def test_rate_factors_of_a_warmup_and_of_constant_rates():
    factors = Recipe(warmup=0.2, schedule="cosine").rate_factors(0, 50, 50)
    assert_allclose(factors[:10], np.arange(1, 11) / 10)
    assert factors.argmax() in (9, 10) and (np.diff(factors[10:]) < 0).all()
    assert factors[-1] < 0.02
    np.testing.assert_array_equal(Recipe().rate_factors(3, 4, 100), np.ones(4))


@pytest.mark.parametrize("name", ["weight_decay", "dropout"])
def test_factors_of_weight_decay_and_dropout(name):
    recipe = Recipe(**{f"{name}_schedule": "flat-cosine"}, warmup=0.5, epoch_rates=[3.0])
    expected = Recipe(schedule="flat-cosine").rate_factors(0, 40, 40)
    assert_allclose(recipe.regularization_factors(name, 0, 40, 40), expected)
    assert_allclose(recipe.regularization_factors(name, 30, 10, 40), expected[30:])
    assert_allclose(Recipe().regularization_factors(name, 3, 4, 10), 1)


def test_factors_of_layers_go_by_name_and_the_first_counts():
    factors = {"scale": 6, "embedding": 0.1, "*/bias": 0.5, "hidden_*": 2}
    recipe = Recipe(rate_factors_of_layers=factors)
    assert recipe == Recipe(rate_factors_of_layers=tuple(factors.items()))
    assert hash(recipe) == hash(Recipe(rate_factors_of_layers=list(factors.items())))
    names = ["embedding/bias", "scale/scale", "hidden_1/kernel", "hidden_1/bias", "output/kernel"]
    assert recipe.factors_of(names) == [0.1, 6, 2, 0.5, 1]
    nested = Recipe(rate_factors_of_layers={"branch_1": 3.0, "hidden": 4.0})
    assert nested.factors_of(["branch_1/hidden/kernel", "hidden/kernel"]) == [3, 4]
    with pytest.raises(ValueError, match=r"that match no weight of the network: \['hidden'\]"):
        nested.factors_of(["branch_1/hidden/kernel"])


@cases(
    ("field", "value"),
    *((field, "linear") for field in ("optimizer", "schedule", "keep")),
    *((field, 0) for field in ("batch_size", "early_stopping_patience")),
    *((field, -1.0) for field in ("learning_rate", "l2", "adversarial_epsilon")),
    *((field, 0.0) for field in ("clip_norm", "final_lr_factor", "epsilon")),
    *((field, 1.0) for field in ("dropout", "momentum", "beta_2")),
    *((field, "coslog4") for field in ("weight_decay_schedule", "dropout_schedule")),
    ("epochs", 2.5),
    *(("steps_per_epoch", value) for value in (0, 2.5)),
    *(("epoch_rates", rates) for rates in ([-1.0], [np.nan], ["a"], 3.0)),
    ("warmup", 1.5),
    ("weight_decay", np.inf),
    *(("rate_factors_of_layers", factors) for factors in ({"scale": -1}, {"scale": "s"}, 3)),
)
def test_bad_recipes_are_refused(field, value):
    with pytest.raises(ValueError, match=rf"[`']{field}[`'].*Got"):
        Recipe(**{field: value})


@cases(
    ("optimizer", "setting", "message"),
    ("adam", {"momentum": 0.5}, "`momentum` can only be set with optimizer=\"sgd\". Got 'adam'"),
    ("rmsprop", {"beta_2": 0.95}, "optimizers adam, adamax and nadam. Got 'rmsprop'"),
    ("sgd", {"epsilon": 1e-8}, "`epsilon` has no effect .* Got 1e-08"),
)
def test_settings_of_other_optimizers_are_refused(optimizer, setting, message):
    with pytest.raises(ValueError, match=message):
        Recipe(optimizer, **setting)


def test_rates_of_epochs_come_on_top_of_the_schedule():
    recipe = Recipe(epochs=5, schedule="cosine", epoch_rates=[1.0, 0.5, 0.1])
    plain = Recipe(epochs=5, schedule="cosine").rate_factors(0, 35, 35)
    expected = plain * np.repeat([1, 0.5, 0.1, 0.1, 0.1], 7)
    assert_allclose(recipe.rate_factors(0, 35, 35), expected)
    assert_allclose(recipe.rate_factors(14, 14, 35), expected[14:28])
    assert recipe == Recipe(epochs=5, schedule="cosine", epoch_rates=(1.0, 0.5, 0.1))
