"""NEON: an operator network with an EpiNet, for functions and for plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from skuq._params import HasMethods, Interval
from skuq._registry import saved_as
from skuq._seeds import generator, trial_seed
from skuq.estimators._given_base import GivenBase
from skuq.estimators._neon_paper import paper_settings
from skuq.estimators._neural import check_units, completed
from skuq.estimators._operator import OPERATOR_CONSTRAINTS, OperatorRegressor
from skuq.estimators._operator_draws import OperatorDraws
from skuq.networks._epinet import EpiNet, EpistemicNetwork
from skuq.networks._plan import ARRAYS
from skuq.networks._rebuild import rebuild
from skuq.predictive import Posterior
from skuq.predictive._posterior import normal_indices
from skuq.training._draws import read_network

__all__ = ["NEONRegressor"]


@saved_as("estimators.NEONRegressor", kind="estimator")
class NEONRegressor(OperatorRegressor):
    """A network of functions whose EpiNet says how unsure it is, and of what together.

    Learns the map from inputs u to functions y -> h(u)(y), from their values at query points.
    A small second network takes a random index z and changes the prediction with it; where
    data do not tell it otherwise, a frozen random prior makes its predictions differ. One z is
    one function: draws are joint over all inputs and queries. With one number a row it
    is an ordinary regressor.

    Parameters
    ----------
    query_points : array-like of shape (q, d_y) or (q,), optional
        Points at which the columns of Y are given. By default columns are numbered from 0 to 1 and
        standardised one by one, and there are no points between them.
    encoder_units : int or sequence of int, default=(64, 64)
        Number of units of each hidden layer of the encoder of u.
    latent : int, default=64
        Length of the latent vector, the output of the encoder.
    decoder : {"split", "concat"}, default="split"
        "split" gives each hidden layer of the decoder a part of the latent vector, "concat" gives
        all of it to the first (section 2.4.1).
    decoder_units : int or sequence of int, default=(64, 64)
        Number of units of each hidden layer of the decoder.
    fourier_scale : float, optional
        Standard deviation of the initial frequencies of Fourier features of the (standardised)
        query points, for functions that vary fast; 5 to 15 in the paper. By default the points
        themselves are used.
    activation : str, default="gelu"
        Activation of the hidden layers, by its Keras name.
    factorize : bool, default=True
        Whether to factorise the weights of all trained layers at random, as the paper's code does.
    build_base : callable, optional
        ``build_base(d_u, d_y, n_outputs) -> keras.Model`` with inputs u and y, which replaces
        encoder and decoder. An EpiNet then sees its last hidden layer, u and y.
    pretrained : keras.Model or fitted regressor, optional
        Fitted model whose predictions are reproduced exactly; only an EpiNet is trained, on the
        residuals. Of a Keras model with inputs u and y (in your units) the EpiNet sees the last
        hidden layer, and it predicts at any query points; any other model has ``predict(X)`` in
        the shape of Y.
    epinet_units : int or sequence of int, default=(32, 32)
        Number of units of each hidden layer of the EpiNet's trained part.
    prior_units : int or sequence of int, default=(5, 5)
        Number of units of each hidden layer of the `n_index` networks of its prior.
    prior_scale : float, default=0.75
        Scale of the random prior (alpha in Eq. 4); 0 disables it. A larger one is less sure away
        from data.
    n_index : int, default=16
        Length of the random index z.
    n_index_samples : int, default=16
        Number of indices drawn for every step; all see the same rows.
    n_draws : int, default=128
        Number of indices that predictions average over, the same for all predictions.
    output_map : {"decaying", "bounded"} or callable, optional
        Last step from the network to (standardised) values: "decaying" is ``a *
        exp(-softplus(b))`` and "bounded" ``sigmoid(a) * exp(-softplus(b))``, of two numbers each,
        or a function of `keras.ops` from (.., m) to (.., m).
    loss : {"auto", "relative", "squared", "huber", "nll"}, default="auto"
        "relative" divides each function's squared error by its size (Eq. 2); "auto" takes it for
        functions and "squared" for single numbers, whose size may be 0. "nll" learns the noise,
        too: predictions are mixtures of normals (Eq. 5).
    steps : int, default=12000
        Number of training steps, rounded up to whole epochs.
    batch_size : int or None, default=64
        Number of pairs of input and query point, or of functions, of a batch; None takes all.
    batch_over : {"pairs", "functions"}, default="pairs"
        Whether a batch holds pairs of input and query point, or whole functions.
    optimizer : str, default="adam"
        Keras' name of the optimiser: sgd, rmsprop, adagrad, adam, adadelta, adamax or nadam.
    learning_rate : float, default=1e-3
        Learning rate of the optimiser.
    schedule : {"constant", "cosine", "exponential"}, default="cosine"
        How the learning rate changes over `steps`, see `skuq.training.Recipe`.
    final_lr_factor : float, default=0.001
        Last learning rate, as a share of `learning_rate`. For data without noise, a lower one
        gives smaller errors.
    warmup : float, default=0.0
        Share of the steps in which the learning rate first rises.
    clip_norm : float or None, default=1.0
        Maximum norm of a gradient; None does not clip.
    standardize : bool, default=True
        Whether to standardise inputs, query points and values, each component by itself.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    member_ : Member
        The trained network as data, with its history.
    query_points_ : ndarray of shape (q, d_y)
    index_ : ndarray of shape (n_draws, n_index)
        The indices that predictions average over.
    n_parameters_ : int
        Numbers that were trained.
    scaling_ : FunctionScaling
    entropy_ : int
        What all random numbers came from.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    OperatorEnsembleRegressor : Many operator networks, with or without randomised priors.
    skuq.bayesopt.BayesianOptimizer : Composite Bayesian optimisation with it.

    References
    ----------
    L. F. Guilhoto, P. Perdikaris. "Composite Bayesian optimization in function spaces using NEON -
    neural epistemic operator networks", 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import NEONRegressor
    >>> u, y = np.linspace(0.5, 2, 8)[:, None], np.linspace(0, 1, 20)
    >>> model = NEONRegressor(query_points=y, steps=500, random_state=0).fit(u, np.sin(u * y))
    >>> model.predict([[1.2]], query_points=[0.33, 0.66]).shape
    (1, 2)
    """

    _parameter_constraints: dict = {
        **OPERATOR_CONSTRAINTS,
        "pretrained": [HasMethods(["predict"]), None],
        "epinet_units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "prior_units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "prior_scale": [Interval(Real, 0, None, closed="left")],
        "n_index": [Interval(Integral, 1, None, closed="left")],
        "n_index_samples": [Interval(Integral, 1, None, closed="left")],
        "n_draws": [Interval(Integral, 2, None, closed="left")],
    }

    def __init__(
        self,
        *,
        query_points=None,
        encoder_units=(64, 64),
        latent=64,
        decoder="split",
        decoder_units=(64, 64),
        fourier_scale=None,
        activation="gelu",
        factorize=True,
        build_base=None,
        pretrained=None,
        epinet_units=(32, 32),
        prior_units=(5, 5),
        prior_scale=0.75,
        n_index=16,
        n_index_samples=16,
        n_draws=128,
        output_map=None,
        loss="auto",
        steps=12_000,
        batch_size=64,
        batch_over="pairs",
        optimizer="adam",
        learning_rate=1e-3,
        schedule="cosine",
        final_lr_factor=0.001,
        warmup=0.0,
        clip_norm=1.0,
        standardize=True,
        random_state=None,
        verbose=0,
    ):
        self.query_points = query_points
        self.encoder_units = encoder_units
        self.latent = latent
        self.decoder = decoder
        self.decoder_units = decoder_units
        self.fourier_scale = fourier_scale
        self.activation = activation
        self.factorize = factorize
        self.build_base = build_base
        self.pretrained = pretrained
        self.epinet_units = epinet_units
        self.prior_units = prior_units
        self.prior_scale = prior_scale
        self.n_index = n_index
        self.n_index_samples = n_index_samples
        self.n_draws = n_draws
        self.output_map = output_map
        self.loss = loss
        self.steps = steps
        self.batch_size = batch_size
        self.batch_over = batch_over
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.final_lr_factor = final_lr_factor
        self.warmup = warmup
        self.clip_norm = clip_norm
        self.standardize = standardize
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def from_paper(cls, name: str, **changes):
        """A model with the settings of one of the paper's problems.

        Parameters
        ----------
        name : {"pollutants", "brusselator", "interferometer", "cell_towers"}
            Sections 6.1 to 6.4. Query points are yours to give.
        **changes
            Other parameters.

        Examples
        --------
        >>> NEONRegressor.from_paper("brusselator", steps=100).fourier_scale
        5.0
        """
        return cls(**{**paper_settings(name), **changes})

    @property
    def _n_draws_a_step(self):
        return self.n_index_samples

    def _prepare(self, X, values, scaling):
        if self.pretrained is None:
            return super()._prepare(X, values, scaling)
        for name in ("build_base", "output_map"):
            if getattr(self, name) is not None:
                raise ValueError(f"`pretrained` gives the prediction: it excludes `{name}`.")
        self._given = GivenBase(self.pretrained, scaling, values.shape[2])
        rows = self._given.fit(X, self.query_points_)
        mean = self._given.mean(X, self.query_points_)
        return rows, (values - mean) / scaling.scale_

    def _train(self, data, n_queries, recipe, order, report):
        from skuq.training import train_member

        base, n_raw = None if self.pretrained is not None else self._base(), self._head.n_raw
        if base is None:
            n_features = data.x.shape[1]
        elif isinstance(base, str):
            n_features = rebuild(base).output_shape[-1] - n_raw
        else:
            n_features = base.n_features
        epinet = EpiNet(
            n_features,
            n_raw,
            int(self.n_index),
            tuple(check_units("epinet_units", self.epinet_units)),
            tuple(check_units("prior_units", self.prior_units)),
            float(self.prior_scale),
            self.activation,
            bool(self.factorize),
        )
        permutation = None if order is None else order(generator(self.entropy_, "order"))
        try:
            member = train_member(
                EpistemicNetwork(base, n_raw, epinet),
                self._head,
                recipe,
                data,
                trial_seed(self.entropy_, 0),
                permutation=permutation,
                report=report,
            )
        except FloatingPointError as error:
            member = error
        completed([member])
        self.member_ = member
        self.n_parameters_ = len(member.weights)

    def _index(self, n_draws, rng, independent=False):
        if independent:
            return rng.standard_normal((n_draws, self.n_index))
        return normal_indices(n_draws, self.n_index, rng)

    def _raw(self, rows, index):
        from skuq.training import predict_draws

        return predict_draws(self.member_, rows, index)

    # -- a given base --------------------------------------------------------------------

    def _values(self, X, index, query_points):
        if self.pretrained is None:
            return super()._values(X, index, query_points)
        queries = self._queries(query_points)
        rows, mean = self._given.rows(X, queries), self._given.mean(X, queries)
        loc, scale = self._head.values(ARRAYS, self._raw(rows, index))
        centre = loc
        if index is not self.index_:
            centre, _ = self._head.values(ARRAYS, self._raw(rows, self.index_))
        shape, unit = (len(loc), *mean.shape), self.scaling_.scale_
        # The EpiNet moves the prediction one way for one z and another way for another, but
        # not on average.
        loc = mean + unit * (loc - centre.mean(axis=0)).reshape(shape)
        return loc, None if scale is None else unit * scale.reshape(shape)

    def _centre(self, X, draws, query_points):
        if self.pretrained is None:
            return super()._centre(X, draws, query_points)
        return self._given.mean(X, self._queries(query_points)).reshape(draws.shape[1:])

    def _posterior(self, index, query_points):
        shape = self._outer_shape(query_points)
        if self.pretrained is not None:
            own = _GivenDraws(self, query_points)
            return Posterior(own, (index,), None, len(index), shape)
        function = OperatorDraws(read_network(self.member_.network), self._head, shape)
        arguments = function.arguments(
            [self.member_], index, self.scaling_, self._queries(query_points)
        )
        return Posterior(function, arguments, function.key(arguments), len(index), shape)


@dataclass(frozen=True)
class _GivenDraws:
    """Draws around a given model's predictions: in NumPy only, as such a model may be anything."""

    model: NEONRegressor
    query_points: np.ndarray | None

    def __call__(self, xp, arguments, X):
        draws, _ = self.model._values(X, arguments[0], self.query_points)
        return draws.reshape(*draws.shape[:2], *self.model._outer_shape(self.query_points))
