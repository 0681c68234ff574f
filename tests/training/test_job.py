"""Recipes, and jobs: records that can be sent, and trained in parts."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from heads import NomuHead, build_mlp, build_nomu
from numpy.testing import assert_allclose, assert_array_equal
from operators import EncoderDecoder, EpiNetLayers, EpistemicNetwork, OperatorHead
from tiers import cases
from training_data import assert_equal_members, make_data, noisy, unplanned

from skuq.backend import BoundedCache, keras
from skuq.networks import GaussianHead
from skuq.training import Recipe, TrainingJob, TrainingRun, _job, train

HEAD = GaussianHead()
# Its plateaus and its early stopping come within the run.
PATIENCE = {"reduce_lr_patience": 2, "reduce_lr_factor": 0.5, "early_stopping_patience": 6}
RECIPE = {"schedule": "cosine", "weight_decay": 0.01, "clip_norm": 1.0, **PATIENCE}
RECIPE = Recipe("nadam", 0.05, batch_size=16, epochs=30, **RECIPE)


@pytest.fixture(scope="module")
def data():
    return make_data()


def uniform(n, rng):
    return rng.uniform(-1, 1, (n, 3))


def job_of(kind, stacked, jit):
    seeds = [1, 2, 3] if stacked else [1]
    options = {"stacked": stacked, "jit": jit}
    if kind == "nomu":
        settings = (("pi_sqr", 0.1), ("pi_exp", 0.5), ("c_exp", 3.0))
        recipe = replace(RECIPE, n_artificial=5, loss_settings=settings)
        network = build_nomu((3,), 1, hidden_units=(8,), side_hidden_units=(6,))
        options["artificial"] = uniform
        return TrainingJob.of_model(network, NomuHead(), recipe, seeds, **options)
    if kind == "epinet":
        base = EncoderDecoder(2, 1, 1, (6,), 4, "split", (5,))
        network = EpistemicNetwork(base, 1, EpiNetLayers(base.n_features, 1, 3, (6,), (4,), 0.75))
        recipe = replace(RECIPE, n_draws=4)
        return TrainingJob.of_model(network, OperatorHead(1), recipe, seeds, **options)
    model = noisy() if kind == "noisy" else unplanned()
    return TrainingJob.of_model(model, HEAD, RECIPE, seeds, **options)


@cases(
    ("kind", "stacked", "jit"),
    *(("noisy", True, False), ("unplanned", False, False)),
    *(("nomu", False, False), ("epinet", True, False)),
    *((kind, True, True) for kind in ("noisy", "unplanned", "nomu", "epinet")),
    quick=4,
)
def test_a_run_in_parts_ends_with_the_same_bits(data, kind, stacked, jit):
    job = job_of(kind, stacked, jit)
    whole = train(job, data)
    assert max(member.n_epochs for member in whole) > 7
    run, n_parts = TrainingRun(pickle.loads(pickle.dumps(job)), data), 1  # sent elsewhere, say
    run.advance(5)
    assert run.n_epochs == 5
    while run.share < 1:
        run.advance(4)
        n_parts += 1
    assert n_parts > 2
    assert_equal_members(run.members(), whole)


@pytest.mark.parametrize("n_epochs", [1, 4])
def test_seconds_do_not_contain_compilation(data, monkeypatch, n_epochs):
    clock = iter(np.cumsum([0.0, 90.0, 1.0, 2.0, 0.0, 2.0, 0.0, 3.0]).tolist())
    job = job_of("noisy", False, False)
    job = replace(job, recipes=tuple(replace(r, epochs=n_epochs) for r in job.recipes))
    run = TrainingRun(job, data)
    monkeypatch.setattr("skuq.training._train.time.perf_counter", lambda: next(clock))
    for _ in range(n_epochs):
        run.advance(1)
    # The first epoch compiles for 90 s. It counts as the mean of the others, or whole if alone.
    assert run.members()[0].seconds == pytest.approx({1: 90.0, 4: 7.0 + 7.0 / 3}[n_epochs])


@pytest.mark.parametrize("kind", ["unplanned", "epinet"])
def test_a_job_needs_no_model(data, monkeypatch, kind):
    """Its configuration is enough, in a process that has never seen the network."""
    job = job_of(kind, kind == "epinet", False)
    expected = train(job, data)
    monkeypatch.setattr(_job, "_templates", BoundedCache(8))
    sent = TrainingJob(job.network, job.head, job.recipes, job.seeds, job.stacked, jit=False)
    assert_equal_members(train(sent, data), expected)


def test_values_of_frozen_layers_are_part_of_a_job(data, monkeypatch):
    model = build_mlp((3,), 2, (9,))
    model.layers[1].trainable = False
    kernel = model.layers[1].kernel
    values = np.linspace(-1, 1, 27, dtype="float32").reshape(3, 9)
    kernel.assign(values)
    job = TrainingJob.of_model(model, HEAD, Recipe(epochs=1), [1])
    kernel.assign(np.zeros((3, 9)))
    monkeypatch.setattr(_job, "_templates", BoundedCache(8))
    (member,) = train(pickle.loads(pickle.dumps(job)), data)
    assert_array_equal(next(part for part in member.state if part.shape == (3, 9)), values)
    with pytest.raises(ValueError, match="frozen layers.*`TrainingJob.of_model`"):
        train(TrainingJob(job.network, HEAD, Recipe(epochs=1), [1]), data)


@cases(
    ("fields", "message"),
    ({"stacked": False}, "one entry unless `stacked=True`"),
    ({"start": []}, r"`start` must have one entry for each seed \(2\). Got 0"),
    ({"recipes": [Recipe()] * 3}, r"`recipes` must have one entry for each seed \(2\). Got 3"),
    ({"recipes": [Recipe(epochs=2), Recipe(epochs=3)]}, "must have the same `epochs`"),
    ({"recipes": [Recipe(dropout=0.1), Recipe()]}, "have a `dropout`, or none"),
    ({"recipes": [Recipe(loss_settings=(("crps", 0.5),)), Recipe()]}, "loss_settings"),
)
def test_what_is_no_job_is_refused(fields, message):
    given = {"network": "", "head": HEAD, "recipes": Recipe(), "seeds": [1, 2], "stacked": True}
    with pytest.raises(ValueError, match=message):
        TrainingJob(**{**given, **fields})


@cases(
    ("fields", "message"),
    ({"dropout": 0.1}, "recipe's `dropout` .* through Keras"),
    ({"dropout_schedule": "flat-cosine"}, "dropout_schedule='flat-cosine' cannot be used"),
    ({"keep": "best-calibrated"}, "needs logits of classes"),
    (
        {"rate_factors_of_layers": {"*/kernel": 2.0, "hiden_1": 0.1}},
        r"match no weight of the network: \['hiden_1'\]",
    ),
)
def test_recipes_that_do_not_suit_a_network_are_refused(data, fields, message):
    with pytest.raises(ValueError, match=message):
        TrainingRun(TrainingJob.of_model(unplanned(), HEAD, Recipe(**fields), [1]), data)


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
    assert_array_equal(Recipe().rate_factors(3, 4, 100), np.ones(4))


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
