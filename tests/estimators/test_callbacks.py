"""scikit-learn's callbacks are told of fits, trials and epochs."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB
from small_models import TinySpace
from tiers import cases

import skuq
from skuq.networks import MLP, NOMUNetwork, NOMUReadout, OperatorNetwork

pytest.importorskip("sklearn.callback")

X = np.random.default_rng(0).normal(size=(40, 2))
Y = X[:, 0]
NUMBERS = NOMUReadout(l_min=0.1, l_max=1, c=1)
RUN = {"epochs": 3, "random_state": 0}
SMALL = {"network": MLP((8,)), **RUN}
OPERATOR = OperatorNetwork(encoder_units=8, latent=8, decoder_units=8)


class Recorder:
    """Writes down what it is told."""

    def __init__(self):
        self.events, self.fitted = [], []

    def setup(self, estimator, context):
        self.events.append(("setup", context.task_name))

    def teardown(self, estimator, context):
        self.events.append(("teardown", context.task_name))

    def on_fit_task_begin(self, estimator, context):
        self.events.append(("begin", context.task_name, context.task_id))

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.events.append(("end", context.task_name, context.task_id))
        if fitted_estimator is not None:
            self.fitted.append((fitted_estimator, X, y))


@pytest.mark.filterwarnings("ignore::UserWarning")
@cases(
    ("model", "y", "unit", "n"),
    (skuq.DeepEnsembleRegressor(2, **SMALL), Y, "epoch", 3),
    (skuq.NOMURegressor(NOMUNetwork(8), readout=NUMBERS, **RUN), Y, "epoch", 3),
    (skuq.NEONRegressor(network=OPERATOR, batch_size=None, **RUN), Y, "epoch", 3),
    (skuq.CalibratedUncertaintyRegressor(LinearRegression(), cv=2), Y, "fit", 3),
    (skuq.HQEnsembleSelector([("a", GaussianNB()), ("b", GaussianNB())]), Y > 0, "model", 2),
    (skuq.NESRegressor(2, n_members=1, space=TinySpace(), **RUN), Y, "trial", 2),
    ids=lambda value: type(value).__name__,
)
def test_set_callbacks_tells_of_every_step(model, y, unit, n):
    recorder = Recorder()
    assert model.set_callbacks(recorder).fit(X, y) is model
    begun, *steps, ended, done = recorder.events[1:]
    assert [recorder.events[0], begun] == [("setup", "fit"), ("begin", "fit", 0)]
    assert steps == [(event, unit, k) for k in range(n) for event in ("begin", "end")]
    assert [ended, done] == [("end", "fit", 0), ("teardown", "fit")]
    ((fitted, own_X, own_y),) = recorder.fitted
    assert own_X is X and own_y is y
    assert_array_equal(fitted.predict(X), model.predict(X))


def test_set_callbacks_counts_neither_fits_inside_nor_those_that_fail():
    inner, recorder = skuq.DeepEnsembleRegressor(2, **SMALL), Recorder()
    skuq.CalibratedUncertaintyRegressor(inner, cv=2).set_callbacks(recorder).fit(X, Y)
    assert "epoch" not in {event[1] for event in recorder.events}
    assert ("end", "fit", 2) in recorder.events
    recorder = Recorder()
    with pytest.raises(ValueError):
        inner.set_callbacks(recorder).fit(X, Y[:-1])
    assert recorder.events[-1] == ("teardown", "fit") and recorder.fitted == []
    with pytest.raises(TypeError, match="missing .* 'y'"):
        inner.fit(X)


def test_save_leaves_callbacks_out(tmp_path):
    model = skuq.DeepEnsembleRegressor(2, **SMALL).set_callbacks(Recorder()).fit(X, Y)
    vars(model)["_parent_callback_ctx"] = object()  # while scikit-learn's search fits the model
    skuq.save(model, tmp_path / "model.skuq")
    loaded = skuq.load(tmp_path / "model.skuq")
    assert not hasattr(loaded, "_skl_callbacks") and not hasattr(loaded, "_parent_callback_ctx")
    assert_array_equal(loaded.predict(X), model.predict(X))
