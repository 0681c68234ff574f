"""NEON: an operator network with an EpiNet, for functions and for plain numbers."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real

import numpy as np

from skuq import training
from skuq._checks import first_true
from skuq._params import HasMethods, Interval, StrOptions
from skuq._registry import saved_as
from skuq._seeds import generator
from skuq.estimators._neon_conditioned import (
    FEWEST_TO_LEARN,
    FEWEST_WITH_NOISE,
    train_conditioned,
)
from skuq.estimators._neon_paper import paper_settings
from skuq.estimators._neon_prior import PRIOR_SCALE
from skuq.estimators._operator import OPERATOR_CONSTRAINTS, OperatorRegressor
from skuq.estimators._operator_training import N_FOLDS
from skuq.estimators._operator_widths import fit_widths
from skuq.fitted._given_base import GivenBase
from skuq.fitted._operator import IndexDraws
from skuq.networks._epinet import EpiNet, EpistemicNetwork
from skuq.networks._mlp import check_units
from skuq.networks._plan import ARRAYS
from skuq.networks._rebuild import rebuild
from skuq.predictive._posterior import quasi_random_normals
from skuq.training._members import find_completed


@saved_as("estimators.NEONRegressor", kind="estimator")
class NEONRegressor(OperatorRegressor):
    """An operator network with an EpiNet, for functions as targets.

    It learns the map from inputs u to functions y -> h(u)(y), from their values at query points.
    A small second network, the EpiNet, takes a random index z and changes the prediction with it.
    A frozen random prior in it makes predictions of different z differ wherever data do not
    determine them. Each z gives one function: draws are joint over all inputs and query points.
    With one number a row it is an ordinary regressor.

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
    epistemic : {"auto", "conditioned", "epinet"}, default="auto"
        How the random prior is taken off where data determine the prediction. "epinet" trains an
        EpiNet to do so, as in the paper. "conditioned" trains base networks only. It
        conditions random changes of their weights on the data in closed form, which close there.
        "auto" is "conditioned" wherever that is possible: without `pretrained`, `build_base`,
        `output_map` and ``loss="nll"``.
    prior_units : int or sequence of int, default=(5, 5)
        Number of units of each hidden layer of the `n_index` networks of its prior.
    prior_scale : "auto" or float, default="auto"
        Scale of the random prior (alpha in Eq. 4), in units of standardised values; 0 disables it.
        A larger one is less sure away from data. "auto" learns it from functions that networks
        leave out, wherever the prior is conditioned on at most 1500 values of at least 5 functions
        without noise, or on at least 5 functions with a known noise; elsewhere it is 0.75, as for
        the paper's pollutants. The networks that it is learnt from start anew in a warm start, and
        with a known noise so does the whole fit. Where a conditioned prior learns the noise, it
        learns its own scale too, and this one only disables it.
    n_index : int, default=16
        Length of the random index z.
    n_index_samples : int, default=16
        Number of indices drawn for every step; all see the same rows.
    n_draws : int, default=128
        Number of indices that predictions average over, the same for all predictions.
    output_map : {"decaying", "bounded"} or callable, optional
        Last step from the network to (standardised) values: "decaying" is ``a *
        exp(-softplus(b))`` and "bounded" ``sigmoid(a) * exp(-softplus(b))``, of two numbers each,
        or a function of `keras.ops` from (.., m) to (.., m), with which each fit, and each step of
        Bayesian optimisation, compiles its own programs.
    loss : {"auto", "relative", "squared", "huber", "nll"}, default="auto"
        "relative" divides each function's squared error by its size (Eq. 2); "auto" takes it for
        functions and "squared" for single numbers, whose size may be 0. "nll" learns the noise,
        too: predictions are mixtures of normals (Eq. 5).
    noise : "auto", float or array-like of shape (m,) or (q, m), default="auto"
        Standard deviation of the noise of values, in units of Y; 0 says that there is none, as in
        the paper. One for each component; where columns have scales of their own, as without query
        points, one for each column, of shape (q, m), or (q,) of one component. "auto" learns one
        for each component, and a factor of the epistemic part, from functions that networks leave
        out. For that there must be 30 functions or more, or 15 with a conditioned prior; for fewer
        there is no noise. With ``loss="nll"`` the networks learn it.
    steps : int or callable, default=12000
        Number of training steps, rounded up to whole epochs; or ``steps(n_functions)``, which
        gives it for so many functions.
    batch_size : int or None, default=64
        Number of pairs of input and query point, or of functions, of a batch; None takes all.
    batch_over : {"pairs", "functions"}, default="pairs"
        Whether a batch holds pairs of input and query point, or whole functions.
    optimizer : str, default="adam"
        Keras' name of the optimiser: sgd, rmsprop, adagrad, adam, adadelta, adamax or nadam.
    learning_rate : float, default=1e-3
        Learning rate of the optimiser.
    epsilon : float, default=1e-7
        Number added to the divisor of each step, in all optimisers but sgd. Optax, the library
        of the paper's code, has 1e-8.
    schedule : {"constant", "cosine", "exponential"}, default="cosine"
        How the learning rate changes over `steps`, see `skuq.training.Recipe`.
    final_lr_factor : float or callable, default=0.001
        Last learning rate, as a share of `learning_rate`; or ``final_lr_factor(n_steps)``. For
        data without noise, a lower one gives smaller errors.
    warmup : float, default=0.0
        Share of the steps in which the learning rate first rises.
    clip_norm : float or None, default=1.0
        Maximum norm of a gradient; None does not clip.
    standardize : bool or "columns", default=True
        Whether to standardise inputs, query points and values, each component by itself. With
        "columns" each query point has a scale of its own, as for the paper's pollutants. There are
        predictions at the query points of Y only then.
    refine : bool, default=False
        Whether to minimise the squared error further after training, in double precision: by the
        Levenberg-Marquardt method for up to 1500 values, and by L-BFGS for more. For data without
        noise (``noise=0.0``), as results of simulations are.
    warm_start : bool, default=False
        Whether `fit` goes on from the networks and scales of the previous fit. Choose fewer
        `steps` then. A fit whose networks leave functions out to learn how large noise and spread
        are starts anew, because they must not have seen these functions.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    members_ : list of Member
        Trained networks as data: weights and history.
    query_points_ : ndarray of shape (q, d_y)
        Query points of the columns of Y.
    index_ : ndarray of shape (n_draws, n_index)
        Indices that predictions average over. With several networks there are equally many for
        each, so that their number can be a little larger than `n_index`.
    noise_std_ : ndarray of shape (m,), or (q, m) where columns have scales of their own
        Standard deviation of the noise, in units of Y: known, learnt, or 0.
    n_parameters_ : int
        Number of trained parameters.
    fitted_ : FittedOperator
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of
        inputs, query points and values.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    OperatorEnsembleRegressor : Many operator networks, with or without randomised priors.
    skuq.bayesopt.BayesianOptimizer : Composite Bayesian optimisation with it.

    Notes
    -----
    All prediction methods take `query_points`, an array-like of shape (q, d_y) or (q,): any
    points, also others than those of `fit`, which are the default. Predictions have the shape of
    Y, with the number of query points asked for: (n[, q[, m]]). `predict_distribution` gives a
    `skuq.predictive.EpistemicNormal`, whose epistemic part is the draws' standard deviation and
    whose aleatoric part is the noise, learnt or given; it is 0 without noise. With ``loss="nll"``
    it gives the `skuq.predictive.GaussianMixture` of all draws.

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
        "epistemic": [StrOptions({"auto", "conditioned", "epinet"})],
        "epinet_units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "prior_units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "prior_scale": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
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
        epistemic="auto",
        epinet_units=(32, 32),
        prior_units=(5, 5),
        prior_scale="auto",
        n_index=16,
        n_index_samples=16,
        n_draws=128,
        output_map=None,
        loss="auto",
        noise="auto",
        steps=12_000,
        batch_size=64,
        batch_over="pairs",
        optimizer="adam",
        learning_rate=1e-3,
        epsilon=1e-7,
        schedule="cosine",
        final_lr_factor=0.001,
        warmup=0.0,
        clip_norm=1.0,
        standardize=True,
        refine=False,
        warm_start=False,
        random_state=None,
        verbose=None,
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
        self.epistemic = epistemic
        self.epinet_units = epinet_units
        self.prior_units = prior_units
        self.prior_scale = prior_scale
        self.n_index = n_index
        self.n_index_samples = n_index_samples
        self.n_draws = n_draws
        self.output_map = output_map
        self.loss = loss
        self.noise = noise
        self.steps = steps
        self.batch_size = batch_size
        self.batch_over = batch_over
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.epsilon = epsilon
        self.schedule = schedule
        self.final_lr_factor = final_lr_factor
        self.warmup = warmup
        self.clip_norm = clip_norm
        self.standardize = standardize
        self.refine = refine
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def from_paper(cls, name: str, **changes):
        """Make a model with the settings of one of the paper's problems.

        Parameters
        ----------
        name : {"pollutants", "brusselator", "interferometer", "cell_towers"}
            Problem of sections 6.1 to 6.4. Query points are not among its settings.
        **changes
            Further parameters, by name.

        Examples
        --------
        >>> NEONRegressor.from_paper("brusselator", steps=100).fourier_scale
        5.0
        """
        return cls(**{**paper_settings(name), **changes})

    def _check_parameters(self, learns_noise):
        super()._check_parameters(learns_noise)
        for name in ("build_base", "output_map"):
            if self.pretrained is not None and getattr(self, name) is not None:
                raise ValueError(f"`pretrained` gives the prediction: it excludes `{name}`.")
        reason = first_true(self._conflicts_with_conditioning())
        if self.epistemic == "conditioned" and reason is not None:
            raise ValueError(
                f"epistemic='conditioned' is not possible with {reason}. Use epistemic='epinet'."
            )
        if self.refine and not self._is_conditioned():
            raise ValueError(
                "`refine=True` changes base networks only, and is not possible with a trained "
                f"EpiNet. Got epistemic={self.epistemic!r}."
            )

    def _conflicts_with_conditioning(self):
        """List what a conditioned prior is not possible with, and whether it is set."""
        return {
            "`pretrained`": self.pretrained is not None,
            "`output_map`": self.output_map is not None,
            "`build_base`": self.build_base is not None,
            "loss='nll'": self.loss == "nll",
        }

    def _leaves_out(self, n_functions, learns_noise):
        if learns_noise:
            return True
        is_known = not isinstance(self.noise, str) and bool(np.any(self.noise))
        return is_known and self._is_conditioned() and n_functions >= FEWEST_WITH_NOISE

    def _fewest_to_learn_noise(self):
        return FEWEST_TO_LEARN if self._is_conditioned() else super()._fewest_to_learn_noise()

    def _is_conditioned(self):
        """Tell whether the prior is conditioned in closed form."""
        return self.epistemic != "epinet" and not any(self._conflicts_with_conditioning().values())

    def _given_base(self, inputs, targets):
        if self.pretrained is None:
            return None
        return GivenBase(self.pretrained, inputs, targets.head.n_outputs)

    def _train(self, job, report):
        """Train the ensemble of NEON: conditioned networks, or a network with an EpiNet."""
        if not self._is_conditioned():
            return self._train_epinet(job, report)
        return train_conditioned(
            job,
            n_index=int(self.n_index),
            n_draws=int(self.n_draws),
            prior_scale=None if self.prior_scale == "auto" else float(self.prior_scale),
            report=report,
        )

    def _train_epinet(self, job, report):
        """Train a network and its EpiNet by gradient steps."""
        epinet = EpiNet(
            n_features=_n_features(job),
            n_raw=job.head.n_raw,
            n_index=int(self.n_index),
            units=tuple(check_units("epinet_units", self.epinet_units)),
            prior_units=tuple(check_units("prior_units", self.prior_units)),
            prior_scale=PRIOR_SCALE if self.prior_scale == "auto" else float(self.prior_scale),
            activation=self.activation,
            factorized=bool(self.factorize),
        )
        network = EpistemicNetwork(job.base, job.head.n_raw, epinet)
        recipe = replace(job.recipe, n_draws=self.n_index_samples)
        index = quasi_random_normals(self.n_draws, self.n_index, generator(job.entropy, "index"))
        # To learn the noise, a twin is trained on four fifths of the functions, and judged on the
        # others.
        n_members, left_out = 1, None
        if job.learns_noise:
            n_members = 2
            left_out = np.stack([np.zeros(job.n_functions, dtype=bool), *job.folds(1, N_FOLDS)])
        members = job.train(network, n_members, report, left_out=left_out, recipe=recipe)
        find_completed(members[:1])  # raises an error if the network itself has diverged
        if find_completed(members) != [0, 1]:  # no twin, or one that has diverged
            return IndexDraws(members[0], index), None
        others = np.flatnonzero(left_out[1])
        rows = job.rows_of(others)
        raw = training.predict_draws(members[1], job.data.x[rows], index)
        values, _ = job.head.values(ARRAYS, raw)
        error = job.data.y[rows] - values.mean(axis=0)
        widths = fit_widths(error**2, values.var(axis=0), job.weight[others], job.noise.shape)
        return IndexDraws(members[0], index), widths

    @property
    def index_(self):
        """Indices that predictions average over."""
        return self.fitted_.draws.index


def _n_features(job) -> int:
    """Compute the number of features that the EpiNet sees of a row."""
    if job.base is None:  # rows are the features of a given base
        return job.data.x.shape[1]
    if isinstance(job.base, str):  # a Keras model gives raw outputs, then features
        return rebuild(job.base).output_shape[-1] - job.head.n_raw
    return job.base.n_features
