"""NOMU's readout: its choice on held-out rows, and its weights for mixed integer programmes."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.model_selection import KFold
from tiers import cases
from training_data import Rows

from skuq import NOMURegressor
from skuq.backend import keras
from skuq.estimators.methods import _nomu_readout as _readout
from skuq.exceptions import SmallValidationWarning
from skuq.fitted._fitted_nomu import Readout
from skuq.networks import NOMUNetwork, NOMUReadout
from skuq.predictive import TwoPieceNormal


def test_readout_widths_are_never_zero():
    readout = Readout("linear", "asymmetric", 0.1, 2.0, c=3.0, level=0.5, growth=4.0)
    up, down = readout.widths(np.array([[1.5, 0.4]]), np.array([2.0]))
    assert_allclose([up, down], np.hypot([[[3.0]], [[0.3]]], 8))
    nothing = Readout("exponential", "symmetric", 0.0, 1.0, c=0.0).widths(np.zeros((1, 1)))
    assert min(nothing) > 0


N, UNIT = 40, 2.0  # held-out rows, and the unit of the standardised y
TARGETS = SimpleNamespace(scaling=SimpleNamespace(scale_=np.array([UNIT])))


class Stub:
    """A trained network with known predictions: zero, and `raw` at each row (a column of X)."""

    def __init__(self, noise=None):
        self.noise = noise

    def predict(self, X, inputs, targets):
        noise = None if self.noise is None else np.full((len(X), 1), self.noise)
        return np.zeros((len(X), 1)), X, noise


def held_out_rows(n=N, n_sides=1, scale=1.0):
    """Rows whose errors have a standard deviation of `scale` times their raw uncertainty."""
    rng = np.random.default_rng(0)
    raw = rng.uniform(0.1, 1, (n, n_sides))
    error = scale * raw[:, :1] * rng.normal(size=(n, 1))
    return Rows(raw, UNIT * error, rng.uniform(0.2, 1, n))


def choose(
    rows, band="symmetric", error=0.01, own=0.0, noise=None, noiseless=False, closed=None, **readout
):
    """Choose a readout by held-out rows, 0.25 from the rows, at which r is `own`.

    With `closed` r counts as none at one artificial input, so far from the rows.
    """
    network, n_sides = Stub(noise), rows.X.shape[1]
    errors = UNIT * error * np.array([[1.0], [-1], [1], [-1]])
    seen = Rows(np.full((4, n_sides), own), errors, np.ones(4))
    raw, distance = np.full((8, n_sides), 0.5), np.full(8, 0.25)
    if closed:
        raw[-1], distance[-1] = own, closed
    parts = np.split(np.arange(len(rows.X)), [len(rows.X) // 3])
    held_out = [(network, rows.take(part), seen) for part in parts]
    evidence = _readout.Evidence(held_out, network, seen, raw, distance)
    inputs = SimpleNamespace(transform=lambda X: 0.25 * ~np.isclose(X, own))  # own rows are at 0
    given = {"noiseless": noiseless, "learns_noise": noise is not None}
    return _readout.choose_readout(NOMUReadout(**readout), band, evidence, inputs, TARGETS, **given)


def at(readout, raw=0.5):
    return readout.c * readout.std(np.array([raw]))[0]


@pytest.mark.parametrize("band", ["symmetric", "asymmetric"])
def test_choose_readout_takes_the_most_likely_c_and_ends(band):
    """With one width c is the root mean square of errors over it, on the side of y (Eq. 51)."""
    rows = held_out_rows(n_sides=1 + (band == "asymmetric"), scale=3)
    error = rows.y[:, 0] / UNIT

    def nll(readout):
        upper, lower = (readout.c * readout.std(rows.X[:, side]) for side in (0, -1))
        density = TwoPieceNormal(np.zeros(N), lower, upper).log_prob(error)
        return -np.average(density, weights=rows.weight)

    chosen = choose(rows, band, c="nll", l_min="nll", l_max="nll")
    for name, values in (("l_min", (0.005, 0.1, 0.8)), ("l_max", (0.9, 3.0, 10.0))):
        for value in values:
            assert nll(chosen) <= nll(replace(chosen, **{name: value})) + 1e-3
    given = choose(rows, band, l_min=0.01, l_max=2.0, c="nll")
    assert (given.l_min, given.l_max, given.noise_factor, given.growth) == (0.01, 2.0, 1, 0)
    assert nll(given) <= min(nll(replace(given, c=given.c * k)) for k in (0.98, 1.02))
    if band == "symmetric":
        square = np.average((error / given.std(rows.X[:, 0])) ** 2, weights=rows.weight)
        assert given.c == pytest.approx(np.sqrt(square), rel=1e-9)


@pytest.mark.parametrize(("n", "noiseless"), [(12, False), (N, True)])
def test_choose_readout_has_a_rule_for_few_rows_and_rows_without_noise(n, noiseless):
    """The band is as wide at the rows as f errs there and next to them, unless l_min is least."""
    few = stats.t.ppf(0.95, max(n / 2 - 1, 3)) / stats.norm.ppf(0.95)
    rows = held_out_rows(n)
    error = np.sqrt(np.average(np.minimum(rows.y[:, 0] / UNIT, 1) ** 2, weights=rows.weight))
    for at_rows, closed, expected in (
        (0.1, 0.0, 0.1),
        (0.0, 0.02, error / 0.25 * 0.02),
        (0.0, 0.2, 0.07),  # 0.15 times the width of the band
        (1e-4, 0.0, 0.0),
    ):
        readout = choose(rows, error=at_rows, closed=closed, noiseless=noiseless)
        assert readout.l_max == 2.0
        if expected:
            if noiseless and not at_rows:
                expected /= 2
            assert 0.9 < readout.c * readout.l_min / (few * expected) < 1.25
        else:
            assert readout.l_min == pytest.approx(0.002)
    # The band is as wide as the errors at held-out rows, even if r is almost 0 at all of them.
    rows = Rows(rows.X / 100, rows.y, rows.weight)
    readout = choose(rows, error=0.3, noiseless=noiseless)
    assert np.std(rows.y / UNIT / (readout.c * readout.std(rows.X))) < 1.1
    given = choose(held_out_rows(n), noiseless=noiseless, l_min=0.1, l_max=0.7)
    assert (given.l_min, given.l_max) == (0.1, 0.7)
    assert choose(held_out_rows(n), noiseless=noiseless, l_min=3.0).l_max == 6.0


@pytest.mark.parametrize("noiseless", [False, True])
def test_choose_readout_keeps_c_where_r_is_no_guide(noiseless):
    """If r is below 0 at held-out rows, the band at the rows is as wide as their errors."""
    rows = held_out_rows(12)
    some = np.where(np.arange(12)[:, None] < 3, -rows.X, rows.X)
    for raw in (-rows.X, some):
        readout = choose(Rows(raw, *rows[1:]), error=0.1, noiseless=noiseless)
        assert at(readout) < 8
        assert np.std(rows.y / UNIT / (readout.c * readout.std(raw))) < 1.1


def test_choose_readout_closes_the_band_where_held_out_rows_allow():
    """R at a network's own rows counts as none, and errors there may open the band by default."""
    rows = held_out_rows(12)
    rows = Rows(rows.X + 0.1, rows.y, rows.weight)
    at_rows = {}
    for own in (0.1, 0.3):  # below r at all held-out rows, and above it at some of them
        for noiseless in (False, True):
            readout = choose(rows, own=own, noiseless=noiseless)
            assert readout.level == pytest.approx(own)
            at_rows[own, noiseless] = readout.c * readout.l_min
    assert at_rows[0.1, False] == pytest.approx(at_rows[0.1, True], rel=0.3)
    assert at_rows[0.1, False] < 0.03 < 0.1 < at_rows[0.3, False]
    assert at_rows[0.3, True] < 0.7 * at_rows[0.3, False]  # no noise, no reason to be open


def test_choose_readout_scales_learnt_noise():
    """Eq. 58: held-out rows tell the factor of noise that does not follow the raw uncertainty."""
    rng = np.random.default_rng(0)
    error = UNIT * 0.6 * rng.normal(size=(2000, 1))
    rows = Rows(rng.uniform(0.01, 2, (2000, 1)), error, np.ones(2000))
    readout = choose(rows, noise=0.3 * UNIT, l_min=0.001, l_max=2.0, c="nll")
    assert readout.noise_factor == pytest.approx(2, rel=0.1)
    assert at(readout) < 0.3


def test_choose_readout_draws_c_of_few_rows_to_the_width_of_y():
    """The prior is added in squares; few rows widen the band as Student's t with n / 2 - 1."""
    few = stats.t.ppf(0.95, 4) / stats.norm.ppf(0.95)
    rows = held_out_rows(10, scale=0.01)
    likely, drawn = (choose(rows, l_min=0.01, l_max=2.0, c=c) for c in ("nll", "auto"))
    width = at(likely) / likely.c
    assert drawn.c == pytest.approx(few * np.hypot(likely.c, 0.8 / width))
    assert drawn.growth == pytest.approx(drawn.c * width / 0.25)  # outside as between the rows
    # Errors above those of a constant, which are 1, widen the prior.
    rows = held_out_rows(10, scale=3)
    likely, drawn = (choose(rows, l_min=0.01, l_max=2.0, c=c) for c in ("nll", "auto"))
    square = np.average(np.square(rows.y[:, 0] / UNIT), weights=rows.weight)
    assert drawn.c == pytest.approx(few * np.hypot(likely.c, np.sqrt(square - 0.36) / width))
    many = held_out_rows(200)
    default, likely = choose(many), choose(many, l_min="nll", l_max="nll", c="nll")
    assert (default.l_min, default.l_max) == (likely.l_min, likely.l_max)
    assert likely.c <= default.c < 1.3 * likely.c


GROUPS = np.repeat(range(4), 3)


def parts_of(validation, n, groups=None, refits=True):
    X = np.random.default_rng(0).normal(size=(n, 3))
    X[:, 2] = 1  # a constant feature has no middle
    rows = Rows(X, X[:, :1], np.ones(n))
    return X, _readout.split_parts(validation, rows, 0, groups, refits=refits)


@cases(
    ("validation", "n", "settings", "sizes"),
    ("auto", 12, {}, [2, 2] + [1] * 8),
    ("auto", 60, {}, [12] * 5),
    ("auto", 60, {"refits": False}, [12]),
    ("auto", 500, {}, [100]),
    (3, 101, {}, [33] * 3),  # equal folds train in one program
    (KFold(2), 12, {}, [6, 6]),
    (0.25, 12, {"groups": GROUPS}, [3]),
    ("auto", 12, {"groups": GROUPS}, [3] * 4),
    (2, 12, {"groups": GROUPS}, [6, 6]),
)
def test_split_parts_holds_every_row_out_once(validation, n, settings, sizes):
    _, parts = parts_of(validation, n, **settings)
    assert [len(valid) for _, valid in parts] == sizes
    held_out = np.concatenate([valid for _, valid in parts])
    assert len(set(held_out)) == len(held_out)
    labels = settings.get("groups", np.arange(n))
    assert all(not np.intersect1d(labels[train], labels[valid]).size for train, valid in parts)


def test_split_parts_holds_out_gaps_besides_folds():
    """Five folds are held out, and the middle third of the rows along each feature."""
    X, parts = parts_of("gaps", 90)
    assert [len(valid) for _, valid in parts] == [18] * 5 + [30] * 2
    middles = {tuple(np.sort(np.argsort(X[:, k])[30:60])) for k in range(2)}
    assert {tuple(valid) for _, valid in parts[5:]} == middles


def test_fit_warns_of_the_likelihood_of_few_rows():
    few = '2 held-out rows .*choose c. Leave c at "auto"'
    with pytest.warns(SmallValidationWarning, match=few):
        fitted(readout=NOMUReadout(c="nll"), refit=False, epochs=1)
    with pytest.warns(SmallValidationWarning, match='c, l_min, l_max. Leave all three at "auto"'):
        _readout.warn_of_few_rows(NOMUReadout(c="nll", l_min="nll", l_max="nll"), 29)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmallValidationWarning)
        _readout.warn_of_few_rows(NOMUReadout(), 12)
        _readout.warn_of_few_rows(NOMUReadout(c="nll"), 30)


def fitted(**settings):
    rng = np.random.default_rng(0)
    X = rng.uniform([-1, 0], [1, 50], (12, 2))
    readout = NOMUReadout("linear", l_min=0.05, l_max=0.4, c=0.7)
    model = NOMURegressor(NOMUNetwork((5, 4)), readout=readout, epochs=3, random_state=0)
    return model.set_params(**settings).fit(X, 100 + 7 * np.sin(3 * X[:, 0]) + X[:, 1])


CONNECTED = {"network__side_hidden_units": (6, 3), "network__connect_layers": 2}


@pytest.mark.parametrize("settings", [{**CONNECTED, "noise_std": "learned"}, {}])
def test_readout_weights_say_what_the_model_predicts(settings):
    model = fitted(**settings)
    readout = model.readout_weights()
    X = np.random.default_rng(1).uniform([-2, -20], [2, 90], (50, 2))
    mean, std = readout(X)
    parts = model.predict_uncertainty(X)
    assert_allclose(mean, parts.mean, rtol=1e-10)
    assert_allclose(std, parts.epistemic, rtol=1e-10)
    if settings:  # the units of a frozen mean are not repeated
        assert sum(len(bias) for _, bias in readout.hidden) == 5 + 4 + 6 + 3


def test_readout_weights_refuse():
    model = fitted(epochs=1).fitted_
    layers, inputs = keras.layers, keras.Input((2,))
    product = layers.Multiply()([layers.Dense(2)(inputs), layers.Dense(2)(inputs)])
    product, weights = keras.Model(inputs, product).to_json(), np.zeros(12)
    network, member = model.network, model.network.member
    product = replace(member, network=product, weights=weights)
    tanh = replace(member, network=member.network.replace('"relu"', '"tanh"'))
    for changes, message in (
        ({"readout": replace(model.readout, kind="exponential")}, 'readout="linear".*Got'),
        ({"readout": replace(model.readout, band="asymmetric")}, 'band="symmetric"'),
        ({"network": replace(network, given=1)}, "`pretrained` is some other model"),
        ({"inputs": SimpleNamespace(encodes=True)}, "the columns of X as they are"),
        ({"targets": SimpleNamespace(n_outputs=2)}, "one output. Got 2"),
        ({"network": replace(network, member=product)}, "networks of dense layers with ReLUs"),
        ({"network": replace(network, member=tanh)}, "in all hidden layers. Got 'tanh'"),
    ):
        with pytest.raises(ValueError, match=message):
            _readout.read_relu_readout(replace(model, **changes))
