"""Jobs: records that can be sent, and trained in parts."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from heads import NomuHead, build_mlp, build_nomu
from numpy.testing import assert_array_equal
from operators import EncoderDecoder, EpiNetLayers, EpistemicNetwork, OperatorHead
from plans import sequential
from tiers import cases
from training_data import MemberTrainer, make_data

from skuq.backend import BoundedCache, keras
from skuq.networks import DenseSpace, GaussianHead
from skuq.training import Recipe, TrainingJob, TrainingRun, _job, train

layers = keras.layers
HEAD = GaussianHead()
# Its plateaus and its early stopping come within the run.
PATIENCE = {"reduce_lr_patience": 2, "reduce_lr_factor": 0.5, "early_stopping_patience": 6}
RECIPE = {"schedule": "cosine", "weight_decay": 0.01, "clip_norm": 1.0, **PATIENCE}
RECIPE = Recipe("nadam", 0.05, batch_size=16, epochs=30, **RECIPE)


@pytest.fixture(scope="module")
def data():
    return make_data()


def noisy():
    """Build a network with state and noise, and a matrix that is a block of its own in XLA."""
    noise = layers.BatchNormalization(momentum=0.8), layers.Dropout(0.3)
    hidden = layers.Dense(70, "relu"), *noise, layers.Dense(70, "tanh")
    return sequential((3,), *hidden, layers.Dense(2))


def unplanned():
    """Runs through Keras, whose random layers have state."""
    hidden = layers.Dense(9, "relu"), layers.UnitNormalization(), layers.Dropout(0.3)
    return sequential((3,), *hidden, layers.Dense(2))


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


def assert_same_members(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        assert a.network == b.network and a.seed == b.seed
        assert a.best_epoch == b.best_epoch and a.tier == b.tier
        for name in ("loss", "val_loss", "learning_rate"):
            assert_array_equal(a.history[name], b.history[name])
        for values in zip((a.weights, *a.state), (b.weights, *b.state)):
            assert_array_equal(*values)
        if a.held_out is not None:
            assert_array_equal(a.held_out, b.held_out)


@cases(
    ("kind", "stacked", "jit"),
    *(("noisy", True, True), ("unplanned", False, False)),
    *(("nomu", False, False), ("epinet", True, False)),
    *(("noisy", *how) for how in ((False, False), (False, True), (True, False))),
    *(("unplanned", *how) for how in ((False, True), (True, False), (True, True))),
    *(("nomu", *how) for how in ((False, True), (True, False), (True, True))),
    *(("epinet", *how) for how in ((False, False), (False, True), (True, True))),
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
    assert_same_members(run.members(), whole)
    with pytest.raises(AttributeError, match="cannot assign"):
        job.jit = True  # parts of one job are of the same settings


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


def test_a_job_needs_no_model(data, monkeypatch):
    """Its configuration is enough, in a process that has never seen the network."""
    job = job_of("noisy", False, False)
    expected = train(job, data)
    monkeypatch.setattr(_job, "_templates", BoundedCache(8))
    sent = TrainingJob(job.network, HEAD, [RECIPE], [1], jit=False)
    assert_same_members(train(sent, data), expected)
    epistemic = job_of("epinet", False, False)
    expected = train(epistemic, data)
    monkeypatch.setattr(_job, "_templates", BoundedCache(8))
    assert_same_members(train(pickle.loads(pickle.dumps(epistemic)), data), expected)


def test_values_of_frozen_layers_are_part_of_a_job(data, monkeypatch):
    model = build_mlp((3,), 2, (9,))
    model.layers[1].trainable = False
    kernel = model.layers[1].kernel
    kernel.assign(np.linspace(-1, 1, 27).reshape(3, 9))
    recipe = replace(RECIPE, weight_decay=0.0)
    job = TrainingJob.of_model(model, HEAD, recipe, [1])
    kernel.assign(np.zeros((3, 9)))
    monkeypatch.setattr(_job, "_templates", BoundedCache(8))
    (member,) = train(pickle.loads(pickle.dumps(job)), data)
    (kept,) = [part for part in member.state if part.shape == (3, 9)]
    assert_array_equal(kept, np.linspace(-1, 1, 27, dtype="float32").reshape(3, 9))
    (zeros,) = train(TrainingJob.of_model(model, HEAD, recipe, [1]), data)
    assert not np.array_equal(zeros.weights, member.weights)
    with pytest.raises(ValueError, match="frozen layers.*`TrainingJob.of_model`"):
        train(TrainingJob(job.network, HEAD, [recipe], [1]), data)


def test_models_are_built_once_a_configuration(data, monkeypatch):
    built, rebuild = [], _job.rebuild
    monkeypatch.setattr(_job, "_templates", BoundedCache(8))
    monkeypatch.setattr(_job, "rebuild", lambda network: built.append(network) or rebuild(network))
    recipe = Recipe(epochs=1)
    job = TrainingJob.of_model(build_mlp((3,), 2, (9,)), HEAD, recipe, [1])
    train(job, data)
    assert not built
    network = build_mlp((3,), 2, (8,)).to_json()
    for seed in (1, 2, 3):
        train(TrainingJob(network, HEAD, [recipe], [seed]), data)
    assert built == [network]


@cases(
    ("fields", "message"),
    ({"seeds": [1, 2]}, "one entry unless `stacked=True`"),
    ({"start": []}, r"`start` must have one entry for each seed \(1\). Got 0"),
    ({"recipes": [Recipe()] * 2}, r"`recipes` must have one entry for each seed \(1\). Got 2"),
)
def test_what_is_no_job_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TrainingJob(**{"network": "", "head": HEAD, "recipes": Recipe(), "seeds": [1], **fields})


def test_a_trainer_trains_the_job_of_a_configuration(data, rng):
    space = DenseSpace(n_nodes=2, max_batch_size=8)
    decisions = space.decisions()
    configuration = (decisions.architecture + decisions.hyperparameters).sample(rng)
    trainer = MemberTrainer(space, data, HEAD, epochs=4, held_out=data.x[:7])
    ((job, _),) = trainer.jobs(configuration, 3)
    assert job.recipe == trainer.recipe(configuration) and job.seeds == (3,)
    assert trainer.jobs(configuration, 3, epochs=2)[0][0].recipe.epochs == 2
    member = trainer(configuration, 3)
    assert member.held_out.shape == (7, 2)
    assert_array_equal(train(job, data)[0].weights, member.weights)
