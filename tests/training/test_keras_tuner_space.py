"""Search spaces in Keras-Tuner's language, through building and training."""

import cloudpickle
import numpy as np
import pytest
from heads import resolve_search_space
from plans import sequential
from tiers import cases
from training_data import MemberTrainer

import skuq
from skuq.backend import keras, keras_tuner
from skuq.exceptions import SearchSpaceError
from skuq.networks import Categorical, GaussianHead, Integer, KerasTunerSpace, Real
from skuq.tables import TrainingData


def build(hp, input_shape, n_outputs):
    layers = keras.layers
    stack = [keras.Input(input_shape)]
    for _ in range(hp.Int("depth", 1, 3)):
        stack.append(layers.Dense(hp.Choice("units", [4, 8]), activation="relu"))
    if hp.Boolean("wide"):
        stack.append(layers.Dense(hp.Int("width", 16, 64, step=16)))
    return keras.Sequential([*stack, layers.Dense(n_outputs)])


def training(hp):
    rate, optimizer = hp.Float("lr", 1e-3, 1e-1, sampling="log"), hp.Choice("opt", ["adam", "sgd"])
    return {"learning_rate": rate, "batch_size": 8, "optimizer": optimizer}


def data():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(30, 3)), rng.normal(size=(30, 1)), np.ones(30)]
    return TrainingData(*parts, *parts)


def test_declared_decisions():
    architecture, hyperparameters = KerasTunerSpace(build, training).decisions((3,), 2)
    by_name = {d.name: d for d in architecture.decisions}
    assert by_name["depth"] == Integer("depth", 1, 3, default=1)
    assert by_name["units"] == Categorical("units", (4, 8), default=4)
    assert by_name["wide"] == Categorical("wide", (False, True), default=False)
    assert "width" not in by_name  # not declared with default values
    lr, opt = hyperparameters.decisions
    assert lr == Real("lr", 1e-3, 1e-1, log=True, default=1e-3)
    assert opt.choices == ("adam", "sgd")


def test_stepped_numbers_become_choices():
    def stepped(hp, input_shape, n_outputs):
        hp.Int("width", 16, 64, step=16)

    (width,) = KerasTunerSpace(stepped).decisions((3,), 2).architecture.decisions
    assert width == Categorical("width", (16, 32, 48, 64), default=16)

    # Rounded steps once missed their own default; log steps of Int came as floats.
    def stepped(hp, input_shape, n_outputs):
        hp.Float("rate", 0.0, 1.0, step=0.1, default=0.3)
        hp.Int("units", 4, 32, step=2, sampling="log")

    rate, units = KerasTunerSpace(stepped).decisions((3,), 2).architecture.decisions
    assert rate.default in rate.choices and abs(rate.default - 0.3) < 1e-12
    assert units.choices == (4, 8, 16, 32) and all(isinstance(u, int) for u in units.choices)


def test_default_training_is_the_papers():
    hyperparameters = KerasTunerSpace(build, max_batch_size=8).decisions((3,), 2).hyperparameters
    assert len(hyperparameters) == 5 and hyperparameters.decisions[1].high == 8
    for space in (Shaped(), (Shaped(), training)):
        architecture = resolve_search_space(space).decisions((3,), 2).architecture
        assert architecture.names == ["depth", "units", "wide"]


def test_a_configuration_is_trained():
    space = KerasTunerSpace(build, training)
    configuration = {"depth": 2, "units": 8, "wide": True, "lr": 0.01, "opt": "sgd"}
    trainer = MemberTrainer(space, data(), GaussianHead(), epochs=2)
    assert trainer.recipe(configuration).learning_rate == 0.01
    assert [layer.units for layer in trainer.build(configuration).layers] == [8, 8, 16, 2]
    assert np.isfinite(trainer(configuration, 1).score)


def raises(hp, input_shape, n_outputs):
    raise ZeroDivisionError("no such luck")


@cases(
    ("builder", "message"),
    (raises, "raised ZeroDivisionError.*no such luck"),
    (lambda hp, shape, n: "a model", "must return a keras.Model. Got str"),
    (
        lambda hp, shape, n: sequential(shape, keras.layers.Dense(n + 1)),
        r"output of shape \(None, 2\).*Got \(None, 3\)",
    ),
)
def test_unusable_spaces_say_why(builder, message):
    with pytest.raises(SearchSpaceError, match=message):
        MemberTrainer(KerasTunerSpace(builder), data(), GaussianHead(), 2).build({})


def test_unknown_training_fields_say_which():
    space = KerasTunerSpace(build, lambda hp: {"learning_rte": 0.1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'learning_rte'"):
        MemberTrainer(space, data(), GaussianHead(), 2).recipe({})
    with pytest.raises(SearchSpaceError, match="raised ZeroDivisionError: no such luck"):
        KerasTunerSpace(raises).decisions((3,), 2)
    with pytest.raises(SearchSpaceError, match="must return a dict. Got int"):
        KerasTunerSpace(build, lambda hp: 3).decisions((3,), 2)


def unregistered():
    class Unregistered(keras.layers.Layer):  # local, so that Keras cannot import it by its name
        def call(self, x):
            return 2 * x

    return Unregistered()


@keras.saving.register_keras_serializable("skuq_tests")
class Forgetful(keras.layers.Layer):
    """Loses its factor when it is rebuilt."""

    def __init__(self, factor=1.0, **arguments):
        super().__init__(**arguments)
        self.factor = factor

    def call(self, x):
        return self.factor * x

    def get_config(self):
        return {"name": self.name}


def adapted(shape, n_outputs):
    normalization = keras.layers.Normalization()
    normalization.adapt(np.arange(12.0).reshape(4, 3))
    return sequential(shape, normalization, keras.layers.Dense(n_outputs))


def two_inputs(shape, n_outputs):
    a, b = keras.Input(shape), keras.Input(shape)
    return keras.Model([a, b], keras.layers.Dense(n_outputs)(a + b))


@cases(
    ("make", "message"),
    (two_inputs, "one input of shape"),
    (
        lambda shape, n: sequential(shape, keras.layers.Dense(n, kernel_constraint="non_neg")),
        "kernel_constraint, and training programs apply no constraints",
    ),
    (
        lambda shape, n: sequential(shape, unregistered(), keras.layers.Dense(n)),
        "cannot be rebuilt from its configuration",
    ),
    (adapted, "copy computes other values.*Give a Normalization layer `mean` and `variance`"),
    (lambda shape, n: sequential(shape, Forgetful(3.0), keras.layers.Dense(n)), "keeps more"),
    (
        lambda shape, n: sequential(shape, keras.layers.Dense(n, dtype="mixed_float16")),
        "float32.*dtype policy",
    ),
    (
        lambda shape, n: keras.Sequential(
            [keras.Input(shape, dtype="bfloat16"), keras.layers.Dense(n)]
        ),
        "takes, holds and computes float32. Got .'bfloat16', 'float32'.",
    ),
    (lambda shape, n: sequential((n,), keras.layers.Activation("relu")), "input of shape"),
)
def test_networks_that_cannot_be_members_are_refused_before_training(make, message):
    space = KerasTunerSpace(lambda hp, shape, n_outputs: make(shape, n_outputs))
    with pytest.raises(SearchSpaceError, match=message):
        MemberTrainer(space, data(), GaussianHead(), 2).build({})


def test_registered_layers_of_a_script_go_with_the_trainer():
    class Sine(keras.layers.Layer):
        def call(self, x):
            return keras.ops.sin(x)

    def waves(hp, shape, n_outputs):
        return sequential(shape, Sine(), keras.layers.Dense(n_outputs))

    Sine.__module__ = "__main__"  # is sent by value
    keras.saving.register_keras_serializable("skuq_tests")(Sine)
    sent = cloudpickle.dumps(MemberTrainer(KerasTunerSpace(waves), data(), GaussianHead(), 2))
    registered = keras.saving.get_custom_objects()
    del registered["skuq_tests>Sine"]  # as in a process that is new
    try:
        assert cloudpickle.loads(sent).build({}).count_params() == 8
    finally:
        registered.pop("skuq_tests>Sine", None)


def of_keras_tuner(hp):
    model = sequential((3,), keras.layers.Dense(hp.Int("units", 1, 3)))
    model.compile("adam", "mse")
    return model


class Hyper(keras_tuner.HyperModel):
    def build(self, hp):
        return of_keras_tuner(hp)


class Shaped(keras_tuner.HyperModel):
    def build(self, hp, input_shape, n_outputs):
        return build(hp, input_shape, n_outputs)


GOT_OF_KERAS_TUNER = r"`build\(input_shape, n_outputs\)`. Got `of_keras_tuner\(hp\)`.$"


def deuq(space):
    return skuq.AutoDEUQRegressor(space=space)


@cases(
    ("estimator", "message"),
    *(
        (deuq(space), rf"hp, input_shape, n_outputs\)`. Got `{got}.*training")
        for space, got in [
            (of_keras_tuner, r"of_keras_tuner\(hp\)`"),
            ((of_keras_tuner, training), r"of_keras_tuner\(hp\)`"),
            (Hyper(), r"build\(hp\)`"),
            (lambda hp, shape: None, r"<lambda>\(hp, shape\)`"),
        ]
    ),
    (deuq((keras.Sequential(), training)), "Got one network, a Sequential"),
    *(
        (estimator, "must be a function that builds a network. Got one")
        for estimator in [
            deuq(keras.Sequential()),
            skuq.NESRegressor(space=keras.Sequential()),
            skuq.DeepEnsembleRegressor(network=keras.Sequential()),
            skuq.MCDropoutRegressor(network=keras.Sequential()),
            skuq.NOMURegressor(network=keras.Sequential()),
            skuq.NEONRegressor(network=keras.Sequential()),
        ]
    ),
    *(
        (kind(network=network), f"^`network` must be .*{message}")
        for kind in (skuq.DeepEnsembleRegressor, skuq.NOMURegressor)
        for network, message in [
            (keras.layers.Dense(2), "Got one layer, a Dense"),
            (keras.Sequential, "Got the class Sequential"),
            (of_keras_tuner, GOT_OF_KERAS_TUNER),
        ]
    ),
)
def test_fit_tells_what_builds_a_network(estimator, message):
    X = np.arange(60.0).reshape(20, 3)
    with pytest.raises(SearchSpaceError, match=message):
        estimator.fit(X, X[:, 0])


@pytest.mark.parametrize("model", [of_keras_tuner, Hyper()])
def test_the_model_of_a_tuner_is_told_what_to_change(model, tmp_path):
    tuner = keras_tuner.RandomSearch(model, "val_loss", directory=tmp_path)
    with pytest.raises(SearchSpaceError, match=r"Got `\w+\(hp\)`"):
        skuq.AutoDEUQRegressor(space=tuner).fit(np.zeros((20, 3)), np.zeros(20))


def test_fit_tells_that_classes_and_tuners_do_not_search(tmp_path):
    tuner = keras_tuner.RandomSearch(of_keras_tuner, "val_loss", directory=tmp_path)
    X = np.zeros((20, 3))
    for given, message in (
        (keras_tuner.oracles.RandomSearchOracle, "`search` must be .*the class RandomSearchOracle"),
        (tuner, "The 'search' parameter.*'create_trial'"),
    ):
        with pytest.raises(ValueError, match=message):
            skuq.AutoDEUQRegressor(search=given, space=build).fit(X, X[:, 0])
