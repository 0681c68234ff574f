"""Small tables to train on, and short ways to train on them."""

import numpy as np
from numpy.testing import assert_allclose
from plans import sequential

from skuq import training
from skuq.backend import keras
from skuq.estimators.methods import _trial_trainer as _trainer
from skuq.networks import _space
from skuq.search import _records
from skuq.tables import TrainingData, _inputs, _scaling, _splits, _targets
from skuq.training import _job, _program, _train

OPTIMIZERS = _space.OPTIMIZERS
Rows, NumberTargets, make_splits = _inputs.Rows, _targets.NumberTargets, _splits.make_splits
NoScaling, RobustScaling = _scaling.NoScaling, _scaling.RobustScaling
Scaling = _scaling.Scaling
TrialBudget, TrialOutcome = _records.TrialBudget, _records.TrialOutcome
MemberTrainer, MemberRefitter = _trainer.MemberTrainer, _trainer.MemberRefitter
INDEX_STREAM, normal, uniform = _program.INDEX_STREAM, _program.normal, _program.uniform
#: Settings of recipes whose rate does not change, and which do not end early.
STEADY = {"reduce_lr_patience": None, "early_stopping_patience": None}
PLAIN = {**STEADY, "keep": "last"}
rule_of, template_of = _program.rule_of, _job.template_of
programs = _train.programs  # the compiled ones in memory


def make_data(n_train=45, n_valid=20, n_outputs=1, seed=0):
    """Noisy sines of the first of three columns, with weights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_train + n_valid, 3))
    y = np.sin(x[:, :1]) + 0.3 * rng.normal(size=(n_train + n_valid, n_outputs))
    parts = x, y, rng.uniform(0.2, 3, n_train + n_valid)
    return TrainingData(*(a[:n_train] for a in parts), *(a[n_train:] for a in parts))


def train_stack(model, head, recipes, data, seeds, *, report=None, cancelled=None, **fields):
    fields = {"stacked": True, **fields}
    job = training.TrainingJob.of_model(model, head, recipes, seeds, **fields)
    return training.train(job, data, report=report, cancelled=cancelled)


def train_member(model, head, recipe, data, seed, **options):
    """Train one network, and raise the error if it diverges."""
    (member,) = train_stack(model, head, recipe, data, [seed], stacked=False, **options)
    if isinstance(member, FloatingPointError):
        raise member
    return member


def assign(model, flat):
    """Set flat weights of a Keras model, and return its trainable variables."""
    ends = np.cumsum([np.prod(v.shape) for v in model.trainable_variables])[:-1]
    for variable, value in zip(model.trainable_variables, np.split(flat, ends)):
        variable.assign(value.reshape(variable.shape))
    return model.trainable_variables


def flat_weights(model):
    return np.concatenate([np.ravel(v) for v in model.trainable_variables])


def noisy():
    """Build a network with state, noise and a penalty, and a large matrix: a block in XLA."""
    layers = keras.layers
    noise = layers.BatchNormalization(momentum=0.8), layers.Dropout(0.3)
    hidden = layers.Dense(70, "relu", kernel_regularizer="l2"), *noise, layers.Dense(70, "tanh")
    return sequential((3,), *hidden, layers.Dense(2))


def unplanned():
    """Build a network that runs through Keras, whose random layers have state."""
    layers = keras.layers
    hidden = layers.Dense(9, "relu"), layers.UnitNormalization(), layers.Dropout(0.3)
    return sequential((3,), *hidden, layers.Dense(2))


def assert_equal_members(found, expected, rtol=0.0):
    """Compare to the bit, or to a share of the largest numbers."""
    for one, two in zip(found, expected, strict=True):
        for name in ("network", "seed", "best_epoch"):
            assert getattr(one, name) == getattr(two, name)
        names = "loss", "val_loss", "learning_rate"
        pairs = [(one.history[name], two.history[name]) for name in names]
        pairs += [(one.weights, two.weights), *zip(one.state, two.state, strict=True)]
        if two.held_out is not None:
            pairs.append((one.held_out, two.held_out))
        for a, b in pairs:
            largest = np.max(np.abs(np.nan_to_num(b)), initial=0)
            assert_allclose(a, b, rtol=rtol, atol=rtol * largest)
