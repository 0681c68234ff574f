"""Keras-Tuner: its language for search spaces, its oracles, and strategies of skuq as oracles."""

import random
import warnings
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
from heads import resolve_search_space
from plans import sequential
from slots import inline, search
from tiers import cases
from training_data import MemberTrainer, make_data

import skuq
from skuq.backend import keras, keras_tuner
from skuq.exceptions import SearchFailedError, SearchSpaceError
from skuq.networks import Categorical, DenseSpace, GaussianHead, Integer, KerasTunerSpace, Real
from skuq.search import AgEBO, AgEBOOracle, OracleSearch, SearchProblem

layers = keras.layers
AUTO, ENSEMBLE, ONE = skuq.AutoDEUQRegressor, skuq.DeepEnsembleRegressor, keras.Sequential()
WITH_NETWORK = ENSEMBLE, skuq.MCDropoutRegressor, skuq.NOMURegressor, skuq.NEONRegressor


def proposer_of(oracle, decisions, n_trials=1):
    return OracleSearch(oracle).proposer(SearchProblem(decisions, n_trials))


def compiled(hp):
    units, activation = hp.Int("units", 2, 16), hp.Choice("act", ["relu", "tanh"])
    model = sequential((2,), layers.Dense(units, activation), layers.Dense(1))
    model.compile(keras.optimizers.get(hp.Choice("optimizer", ["adam", "sgd"])), "mse")
    model.optimizer.learning_rate = hp.Float("learning_rate", 1e-4, 1e-1, sampling="log")
    return model


@pytest.mark.slow
def test_oracle_drives_keras_tuners_own_tuner(tmp_path, rng):
    oracle = AgEBOOracle(max_trials=9, search=AgEBO(population_size=4, sample_size=2), seed=1)
    tuner = keras_tuner.Tuner(oracle, compiled, directory=tmp_path, project_name="p")
    x = rng.normal(size=(24, 2))
    y = x.sum(axis=1)
    tuner.search(x, y, validation_data=(x, y), epochs=1, verbose=0)
    trials = [oracle.trials[key] for key in oracle.end_order]
    assert [trial.status for trial in trials] == ["COMPLETED"] * 9
    drawn = [trial.hyperparameters.values for trial in trials]
    assert all({"units", "act", "learning_rate", "optimizer"} <= set(values) for values in drawn)
    # The last ones evolve: each differs by one architecture decision from an earlier one.
    for k in range(5, 9):
        changes = [sum(one[n] != drawn[k][n] for n in ("units", "act")) for one in drawn[:k]]
        assert 1 in changes


def test_a_trial_with_an_infinite_score_is_a_failure_for_the_forest():
    oracle = AgEBOOracle(max_trials=9, hyperparameters=keras_tuner.HyperParameters(), seed=1)
    trial = keras_tuner.engine.trial.Trial(keras_tuner.HyperParameters(), status="COMPLETED")
    for trial.score in (0.5, np.inf, -np.inf):
        assert oracle._record(0, trial, skuq.networks.Space(), 1).failed is (trial.score != 0.5)


def evaluate(configuration, seed):
    if configuration["optimizer"] == "sgd":
        raise ArithmeticError("no sgd")
    return SimpleNamespace(score=abs(np.log10(configuration["learning_rate"]) + 2))


def bayesian():
    objective = keras_tuner.Objective("score", "max")
    return keras_tuner.oracles.BayesianOptimizationOracle(objective, max_trials=20, seed=1)


@cases("make", bayesian, lambda: AgEBOOracle(max_trials=20, seed=1), ids=["bayesian", "agebo"])
def test_any_oracle_drives_our_search(make):
    oracle, decisions = make(), DenseSpace(n_nodes=1).decisions()
    before, proposer = random.getstate(), proposer_of(oracle, decisions)
    records = search(inline(evaluate), 15, proposer, entropy=1)
    assert len(records) == 15 and random.getstate() == before
    both = decisions.architecture + decisions.hyperparameters
    for record in records:
        assert both.check(record.configuration, "c") == record.configuration
    scored = [t for t in oracle.trials.values() if t.status == "COMPLETED"]
    assert len(scored) == sum(record.completed for record in records)
    sign = -1 if oracle.objective.direction == "max" else 1
    expected = sorted(r.score for r in records if r.completed)
    assert sorted(sign * trial.score for trial in scored) == pytest.approx(expected)


def test_an_oracle_that_has_nothing_left_says_so_and_leaves_no_folder():
    oracle = keras_tuner.oracles.RandomSearchOracle(objective="val_loss", max_trials=2)
    decisions = DenseSpace(n_nodes=1).decisions()
    with pytest.raises(ValueError, match="max_trials must be at least n_trials=5. Got 2"):
        proposer_of(oracle, decisions, 5)
    proposer = proposer_of(oracle, decisions)
    with pytest.raises(SearchFailedError) as error:
        search(inline(evaluate), 5, proposer, entropy=1)
    assert "could not propose trial 2" in str(error.value) and len(error.value.records) == 2
    oracle = keras_tuner.oracles.RandomSearchOracle("val_loss", max_trials=2)
    proposer = proposer_of(oracle, DenseSpace(n_nodes=1).decisions())
    folder = Path(oracle._project_dir)
    assert folder.is_dir()
    with warnings.catch_warnings(record=True, action="always") as caught:
        del proposer  # a warning would be of resources that nobody has released
    assert not caught and not folder.exists()


def build(hp, input_shape, n_outputs):
    stack, depth = [keras.Input(input_shape)], hp.Int("depth", 1, 3)
    stack += [layers.Dense(hp.Choice("units", [4, 8]), activation="relu") for _ in range(depth)]
    if hp.Boolean("wide"):
        stack.append(layers.Dense(hp.Int("width", 16, 64, step=16)))
    return keras.Sequential([*stack, layers.Dense(n_outputs)])


def training(hp):
    rate, optimizer = hp.Float("lr", 1e-3, 1e-1, sampling="log"), hp.Choice("opt", ["adam", "sgd"])
    return {"learning_rate": rate, "batch_size": 8, "optimizer": optimizer}


def test_declared_decisions_of_which_stepped_numbers_become_choices():
    architecture, hyperparameters = KerasTunerSpace(build, training).decisions((3,), 2)
    # "width" exists for one value of "wide" only.
    assert set(architecture.decisions) == {
        Integer("depth", 1, 3, default=1),
        Categorical("units", (4, 8), default=4),
        Categorical("wide", (False, True), default=False),
        Categorical("width", (16, 32, 48, 64), default=16),
    }
    lr, opt = hyperparameters.decisions
    assert lr == Real("lr", 1e-3, 1e-1, log=True, default=1e-3) and opt.choices == ("adam", "sgd")

    def stepped(hp, input_shape, n_outputs):
        hp.Int("width", 16, 64, step=16)
        hp.Float("rate", 0.0, 1.0, step=0.1, default=0.3)  # which rounded steps may miss
        hp.Int("units", 4, 32, step=2, sampling="log")

    width, rate, units = KerasTunerSpace(stepped).decisions((3,), 2).architecture.decisions
    assert width == Categorical("width", (16, 32, 48, 64), default=16)
    assert rate.default in rate.choices and abs(rate.default - 0.3) < 1e-12
    assert units.choices == (4, 8, 16, 32) and all(isinstance(u, int) for u in units.choices)
    # Training is by default that of the paper.
    hyperparameters = KerasTunerSpace(build, max_batch_size=8).decisions((3,), 2).hyperparameters
    assert len(hyperparameters) == 5 and hyperparameters.decisions[1].high == 8
    for hypermodel in (Shaped(), (Shaped(), training)):  # stands for its `build`
        architecture, _ = resolve_search_space(hypermodel).decisions((3,), 2)
        assert architecture.names == ["depth", "units", "wide", "width"]


def nested(hp, *_):
    """Like `build`, with decisions inside of decisions; one network is impossible."""
    for i in range(hp.Int("depth", 1, 9)):
        with hp.name_scope(f"block_{i}"):
            if hp.Choice("kind", ["plain", "wide"]) == "wide" and hp.Int("width", 8, 99) > 90:
                hp.Float("rate", 0.1, 0.5)
    with hp.conditional_scope("depth", [4]):
        hp.Boolean("scoped")
    if hp.Choice("act", ["relu", "tanh"]) == "tanh" and hp.get("depth") > 4:
        hp.Fixed("both", 3)
    if hp.Int("heads", 1, 3) == 3:
        raise ValueError("heads")
    if 0.3 < hp.Float("share", 0, 1) < 0.3001:
        hp.Int("rare", 1, 2)


def test_decisions_that_only_some_networks_have_are_searched_and_rare_ones_named():
    names = KerasTunerSpace(nested).decisions((3,), 2).architecture.names
    blocks = [f"block_{i}/{name}" for i in range(9) for name in ("kind", "width", "rate")]
    assert set(names) == {"depth", "scoped", "act", "both", "heads", "share", *blocks}
    assert KerasTunerSpace(nested).decisions((3,), 2).architecture.names == names

    def momentum(hp):
        with_momentum = hp.Choice("opt", ["a", "sgd"]) == "sgd"
        return {"momentum": hp.Float("momentum", 0, 0.9)} if with_momentum else {}

    assert KerasTunerSpace(nested, momentum).decisions((3,), 2)[1].names == ["opt", "momentum"]
    with warnings.catch_warnings(action="error"):
        KerasTunerSpace(nested).build({**dict.fromkeys(names, 1), "act": "relu"}, (3,), 2)
    with pytest.warns(UserWarning, match=r"`build` declares \['rare'\] only for rare values"):
        KerasTunerSpace(nested).build({**dict.fromkeys(names, 1), "share": 0.30001}, (3,), 2)


def trainer_of(build, training=None):
    return MemberTrainer(KerasTunerSpace(build, training), make_data(), GaussianHead(), epochs=2)


def test_a_configuration_is_trained_with_registered_layers_of_a_script():
    configuration = {"depth": 2, "units": 8, "wide": True, "width": 16, "lr": 0.01, "opt": "sgd"}
    trainer = trainer_of(build, training)
    assert trainer.recipe(configuration).learning_rate == 0.01
    assert [layer.units for layer in trainer.build(configuration).layers] == [8, 8, 16, 2]
    assert np.isfinite(trainer(configuration, 1).score)

    class Sine(layers.Layer):
        def call(self, x):
            return keras.ops.sin(x)

    Sine.__module__ = "__main__"  # is sent by value
    keras.saving.register_keras_serializable("skuq_tests")(Sine)
    trainer = trainer_of(lambda hp, shape, n: sequential(shape, Sine(), layers.Dense(n)))
    sent, registered = cloudpickle.dumps(trainer), keras.saving.get_custom_objects()
    del registered["skuq_tests>Sine"]  # as in a process that is new
    try:
        assert cloudpickle.loads(sent).build({}).count_params() == 8
    finally:
        registered.pop("skuq_tests>Sine", None)


def raises(hp, *arguments):
    raise ZeroDivisionError("no such luck")


@cases(
    ("act", "error", "message"),
    (lambda _: KerasTunerSpace(raises).decisions((3,), 2), SearchSpaceError, "no such luck"),
    (trainer_of(raises).build, SearchSpaceError, "raised ZeroDivisionError.*no such luck"),
    (trainer_of(lambda hp, *_: "a model").build, SearchSpaceError, "a keras.Model. Got str"),
    (trainer_of(build, lambda hp: {"lr": 0.1}).recipe, TypeError, r"unknown fields \['lr'\]\."),
    (trainer_of(build, lambda hp: 3).recipe, SearchSpaceError, "must return a dict. Got int"),
)
def test_unusable_spaces_say_why(act, error, message):
    with pytest.raises(error, match=message):
        act({})


def of_keras_tuner(hp):
    model = sequential((3,), layers.Dense(hp.Int("units", 1, 3)))
    model.compile("adam", "mse")
    return model


class Hyper(keras_tuner.HyperModel):
    def build(self, hp):
        return of_keras_tuner(hp)


class Shaped(keras_tuner.HyperModel):
    def build(self, hp, input_shape, n_outputs):
        return build(hp, input_shape, n_outputs)


@cases(
    ("kind", "settings", "message"),
    (AUTO, {"space": (of_keras_tuner, training)}, r"hp, input_shape, .*Got `of_.*\(hp\)`.*train"),
    (AUTO, {"space": Hyper()}, r"Got `build\(hp\)`"),
    *((kind, {"space": ONE}, "builds .* Got one network") for kind in (AUTO, skuq.NESRegressor)),
    *((kind, {"network": ONE}, "must be .* Got one network, a Seq") for kind in WITH_NETWORK),
    (ENSEMBLE, {"network": layers.Dense(2)}, "^`network` must be .*Got one layer, a Dense"),
    (ENSEMBLE, {"network": keras.Sequential}, "^`network` must be .*Got the class Sequential"),
    (ENSEMBLE, {"network": of_keras_tuner}, r"`build\(input_shape, .*Got `of_keras_tuner\(hp\)`.$"),
)
def test_fit_tells_what_builds_a_network(kind, settings, message):
    X = np.arange(60.0).reshape(20, 3)
    with pytest.raises(SearchSpaceError, match=message):
        kind(**settings).fit(X, X[:, 0])
