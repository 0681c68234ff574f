"""NEON and ensembles of operator networks: regressors whose targets are functions.

Settings of NEON's paper stand first, as data. They are those of sections 6.1 to 6.4; what these
leave open, and the number of steps, is the authors' code's. Their optimiser is Optax' Adam, whose
epsilon is 1e-8.
"""

import functools
from collections.abc import Callable
from dataclasses import field, replace
from numbers import Integral, Real
from operator import attrgetter
from typing import Any

import numpy as np
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array

from skuq import _params
from skuq._params import Interval, StrOptions, parameters, settings_constraint
from skuq.estimators._base import Fit, Given, UncertaintyRegressor, training_progress
from skuq.estimators._task import read_task
from skuq.estimators.methods import _neon_training
from skuq.estimators.methods._neon_conditioned import FEWEST_TO_LEARN, train_conditioned
from skuq.files._registry import saved_record
from skuq.fitted._fitted_operator import FittedOperator, GivenBase, Widths
from skuq.networks import ConditionedPrior, EpiNet, OperatorNetwork, _operator_network
from skuq.networks._keras_models import check_builder
from skuq.networks._operator_network import OPERATOR_NETWORKS, OUTPUT_MAPS, PRIOR_SCALE, PRIORS
from skuq.tables import TrainingData
from skuq.tables._functions import FunctionInputs, FunctionTargets, flat_values
from skuq.training._recipe import TRAINING, Training


@saved_record("estimators.NEONRegressor.GrowingSteps", eq=True)
class GrowingSteps:
    """Number of training steps that grows linearly with the number of functions.

    Parameters
    ----------
    first : int
        Number of steps for `n_first` functions, and for fewer.
    n_first : int
    growth : float
        Further steps for each further function, as a share of `first`.
    """

    first: int
    n_first: int
    growth: float

    def __call__(self, n_functions: int) -> int:
        return round(self.first * (1 + self.growth * max(0, n_functions - self.n_first)))


@saved_record("estimators.NEONRegressor.DecayEvery", eq=True)
class DecayEvery:
    """Last share of a learning rate that falls exponentially, by `factor` in `every` steps."""

    factor: float
    every: int

    def __call__(self, n_steps: int) -> float:
        return self.factor ** (n_steps / self.every)


# Parameters that the paper's problems share. The number of steps grows with the number of
# functions, as in the authors' code.
_USUAL: dict[str, Any] = {
    "network__encoder_units": (64, 64),
    "network__latent": 96,
    "network__decoder_units": (64, 64, 64),
    "prior": "epinet",
    "prior__units": (32, 32),
    "prior__prior_units": (5, 5),
    "prior__scale": 1.0,
    "noise_std": 0.0,
    "learning_rate": 1e-3,
    "batch_size": None,
    "training__epsilon": 1e-8,
    "training__schedule": "exponential",
    "training__clip_norm": None,
}
# The authors' loss sums half the squared error over a batch of pairs and over components, and
# multiplies it by the mean of 1 / |s|^2 of the functions s as they are; skuq's is a mean, of
# standardised values. Near the clips of the last two problems the scale of the loss decides which
# gradients are clipped, and how much epsilon damps. So both are divided by the ratio of the losses
# on the problem's initial design: 0.013 and 1.5e-4. (The pollutants' ratio grows with the number of
# functions, from 0.05 to 0.5.)
_PROBLEMS: dict[str, dict[str, Any]] = {
    "pollutants": {  # section 6.1, with a scale for each of the twelve columns
        "network__latent": 64,
        "network__decoder_units": (64, 64),
        "prior__scale": PRIOR_SCALE,
        "learning_rate": 3e-4,
        "batch_size": 256,
        "training__steps": GrowingSteps(12_000, 5, 1 / 35),
        "training__final_lr_factor": DecayEvery(0.75, 1000),
        "training__clip_norm": 0.5,
        "standardize": "columns",
    },
    "brusselator": {  # section 6.2
        "network__fourier_scale": 5.0,
        "training__steps": GrowingSteps(4_000, 5, 2 / 30),
        "training__final_lr_factor": DecayEvery(0.8, 1000),
    },
    "interferometer": {  # section 6.3
        "network__encoder_units": (64, 64, 64, 64),
        "network__decoder_units": (128,) * 6,
        "network__fourier_scale": 10.0,
        "prior__units": (64, 64, 64),
        "prior__prior_units": (8, 8),
        "output_map": "bounded",
        "learning_rate": 5e-2,
        "batch_size": 16_384,
        "training__epsilon": 1e-8 / 0.013,
        "training__steps": GrowingSteps(15_000, 15, 0.2 / 85),
        "training__schedule": "cosine",
        "training__final_lr_factor": 0.06,
        "training__warmup": 0.02,
        "training__clip_norm": 5e-7 / 0.013,
    },
    "cell_towers": {  # section 6.4
        "network__encoder_units": (64,),
        "network__latent": 192,
        "network__decoder_units": (64,) * 6,
        "network__fourier_scale": 15.0,
        "prior__units": (64, 64, 64),
        "prior__scale": 0.5,
        "output_map": "decaying",
        "learning_rate": 8e-3,
        "batch_size": 2_500,
        "training__epsilon": 1e-8 / 1.5e-4,
        "training__steps": GrowingSteps(12_000, 20, 0.2 / 150),
        "training__schedule": "cosine",
        "training__final_lr_factor": 0.375,
        "training__warmup": 0.025,
        "training__clip_norm": 5e-5 / 1.5e-4,
    },
}

# Constraints of the parameters that all regressors of functions share.
_CONSTRAINTS: dict = {
    "query_points": ["array-like", None],
    "network": [*settings_constraint(OPERATOR_NETWORKS, OperatorNetwork), callable],
    "output_map": [StrOptions(set(OUTPUT_MAPS)), callable, None],
    "loss": [StrOptions({"auto", "relative", "squared", "huber", "nll"})],
    "noise_std": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left"), "array-like"],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    "batch_over": [StrOptions({"pairs", "functions"})],
    "epochs": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "training": settings_constraint(TRAINING, Training),
    "standardize": ["boolean", StrOptions({"columns"})],
    "refine": ["boolean"],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
    "verbose": ["verbose", None],
}


class OperatorRegressor(UncertaintyRegressor):
    """Base class of regressors whose targets are functions, known at query points.

    The `_fit` of a subclass says how its draws come to differ; see `_fit_operator`.
    """

    #: `predict` takes it through its keywords, where scikit-learn's routing does not look.
    __metadata_request__predict = {"query_points": None}

    #: Given model, if a subclass accepts one.
    pretrained = None

    _settings = {"network": OPERATOR_NETWORKS, "training": TRAINING}

    def fit(self, X, Y, sample_weight=None):
        """Train the networks.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
            Finite numbers: each row is the input of one function.
        Y : array-like of shape (n,), (n, q) or (n, q, m)
            The functions' values at the q query points, with m components each.
        sample_weight : array-like of shape (n,), optional
            Weight of each function; non-negative.

        Returns
        -------
        self
        """
        return self._fit_by(Given(X, Y, sample_weight))

    members_ = property(lambda self: list(self.fitted_.draws.members), doc="")
    n_parameters_ = property(lambda self: sum(len(m.weights) for m in self.members_), doc="")

    @property
    def noise_std_(self):
        """Standard deviation of the noise."""
        widths = self.fitted_.widths
        noise = np.zeros_like(self.fitted_.targets.scale_) if widths is None else widths.noise
        return noise if len(noise) > 1 else noise[0]

    # Parts of the fitted model, which the class docstring describes.
    query_points_ = property(attrgetter("fitted_.inputs.query_points"), doc="")

    def score(self, X, y, sample_weight=None):
        """Compute the coefficient of determination of the mean, weighted by each value's variance.

        A query point at which all functions agree has no influence.

        Parameters
        ----------
        X : array-like of shape (n, d_u)
        y : array-like of shape (n[, q[, m]])
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        float
        """
        y = check_array(flat_values(y)[0], ensure_2d=False, dtype="float64", input_name="y")
        mean, by_variance = flat_values(self.predict(X))[0], "variance_weighted"
        return r2_score(y, mean, sample_weight=sample_weight, multioutput=by_variance)


@parameters("estimators.NEONRegressor", kind="estimator")
class NEONRegressor(OperatorRegressor):
    """Operator networks whose random weight changes are conditioned on the data in closed form.

    It learns the map from inputs u to functions y -> h(u)(y), from their values at query points.
    By default a base network is trained alone. Random changes of its weights, conditioned on the
    data by linear algebra, then tell how uncertain it is: without noise they agree at the data and
    differ elsewhere. The paper's method, which trains a second small network (an EpiNet) instead,
    is ``prior="epinet"``. Either way each random index z gives one function: draws are joint over
    all inputs and query points. With one number a row it is an ordinary regressor.

    Parameters
    ----------
    query_points : array-like of shape (q, d_y) or (q,), optional
        Points at which the columns of Y are given. By default columns are numbered from 0 to 1 and
        standardised one by one, and there are no points between them.
    network : {"split", "concat"}, OperatorNetwork or callable, default="split"
        The base network: settings of an encoder of u and a decoder of u and y, see
        `skuq.networks.OperatorNetwork`, or the kind of the decoder for default settings. Or a
        function ``network(d_u, d_y, n_outputs) -> keras.Model`` with inputs u and y.
    output_map : {"decaying", "bounded"} or callable, optional
        Last step from the network to (standardised) values: "decaying" is ``a *
        exp(-softplus(b))`` and "bounded" ``sigmoid(a) * exp(-softplus(b))``, of two numbers each,
        or a function of `keras.ops` from (.., m) to (.., m), with which each fit, and each step of
        Bayesian optimisation, compiles its own programs.
    prior : {"auto", "conditioned", "epinet"}, ConditionedPrior or EpiNet, default="auto"
        Random prior that makes draws differ, and how the data remove it where they determine the
        prediction. "conditioned" trains base networks only, and conditions random changes of
        their weights on the data in closed form, see `skuq.networks.ConditionedPrior`. "epinet"
        trains an EpiNet to undo its frozen prior, as in the paper, see `skuq.networks.EpiNet`.
        "auto" is "conditioned" wherever that is possible: without `pretrained`, `output_map`,
        ``loss="nll"`` and a function as `network`.
    n_draws : int, default=128
        Number of indices that all predictions average over, at most 2**22.
    pretrained : keras.Model or fitted regressor, optional
        Fitted model whose predictions are reproduced exactly. Only an EpiNet is trained, on the
        residuals. Of a Keras model with inputs u and y (in your units) the EpiNet sees the last
        hidden layer, and it predicts at any query points; any other model has ``predict(X)`` in the
        shape of Y.
    loss : {"auto", "relative", "squared", "huber", "nll"}, default="auto"
        "relative" divides each function's squared error by its size (Eq. 2); "auto" takes it for
        functions and "squared" for single numbers, whose size may be 0. "nll" learns the noise,
        too: predictions are mixtures of normals (Eq. 5).
    noise_std : "auto", float or array-like of shape (m,) or (q, m), default="auto"
        Standard deviation of the noise of values, in units of Y; 0 says that there is none, as in
        the paper. One for each component; where columns have scales of their own, as without query
        points, one for each column, of shape (q, m), or (q,) of one component. "auto" learns one
        for each component, and a factor of the epistemic part, from functions that networks leave
        out. For that there must be 30 functions or more; for fewer there is no noise. With
        ``loss="nll"`` the networks learn it. With a conditioned prior 15 functions are enough, and
        it is 0 where left-out values are clearly likelier without noise.
    learning_rate : float, default=1e-3
        Learning rate of the optimiser.
    batch_size : int or None, default=64
        Number of rows of a batch. None takes all rows. What a row is, `batch_over` says: a pair of
        input and query point, or a function.
    batch_over : {"pairs", "functions"}, default="pairs"
        Whether a batch holds pairs of input and query point, or whole functions.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. "auto" takes as many as make 12,000 steps of the optimiser,
        or the steps of `training`.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused. Those with effect are
        `optimizer` (adam), `epsilon`, `schedule` (cosine), `final_lr_factor` (0.001, or a function
        of the number of steps; for data without noise, a lower one gives smaller errors), `warmup`,
        `clip_norm` (1.0), and `steps`: the number of steps in place of `epochs`, or a function of
        the number of functions.
    refine : bool, default=False
        Whether to minimise the squared error further after training, in double precision: by the
        Levenberg-Marquardt method for up to 1500 values, and by L-BFGS for more. For data without
        noise (``noise_std=0.0``), as results of simulations are.
    standardize : bool or "columns", default=True
        Whether to standardise inputs, query points and values, each component by itself. With
        "columns" each query point has a scale of its own, as for the paper's pollutants. There are
        predictions at the query points of Y only then.
    warm_start : bool, default=False
        Whether `fit` goes on from the previous fit. Networks and scales are those of the previous
        fit; choose fewer steps then. The prior of data without noise is learnt again once there are
        1.5 times the functions. A fit whose networks leave functions out to learn how large
        noise and spread are starts from random weights, because they must not have seen these
        functions.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    members_ : list of Member
        Records of the trained networks, such as weights and history.
    query_points_ : ndarray of shape (q, d_y)
        Query points of the columns of Y.
    index_ : ndarray of shape (n_draws, n_index)
        Indices that predictions average over. With several networks there are equally many for
        each, so that their number can be a little larger than that of the prior.
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
    >>> from skuq.training import Training
    >>> u, y = np.linspace(0.5, 2, 8)[:, None], np.linspace(0, 1, 20)
    >>> short = Training(steps=200)
    >>> model = NEONRegressor(query_points=y, noise_std=0.0, training=short, random_state=0)
    >>> model.fit(u, np.sin(u * y)).predict([[1.2]], query_points=[0.33, 0.66]).shape
    (1, 2)
    """

    query_points: Any = None
    network: Any = "split"
    output_map: Any = None
    prior: Any = "auto"
    n_draws: int = 128
    pretrained: Any = None
    loss: str = "auto"
    noise_std: Any = "auto"
    learning_rate: float = 1e-3
    batch_size: int | None = 64
    batch_over: str = "pairs"
    epochs: int | str = "auto"
    training: Any = "auto"
    refine: bool = False
    standardize: Any = True
    warm_start: bool = False
    random_state: Any = None
    verbose: int | None = None

    _settings = {**OperatorRegressor._settings, "prior": PRIORS}
    _parameter_constraints = {
        **_CONSTRAINTS,
        "prior": settings_constraint(PRIORS, ConditionedPrior, EpiNet),
        "n_draws": [Interval(Integral, 2, 2**22, closed="both")],
        "pretrained": [_params.HasMethods(["predict"]), None],
    }

    @classmethod
    def from_paper(cls, name: str, **changes):
        """Make a model with the settings of one of the paper's problems, and its code's steps.

        Parameters
        ----------
        name : {"pollutants", "brusselator", "interferometer", "cell_towers"}
            Problem of sections 6.1 to 6.4. Query points are not among its settings.
        **changes
            Further parameters, by name, as in `set_params`.

        Examples
        --------
        >>> model = NEONRegressor.from_paper("brusselator", training__steps=100)
        >>> model.network.fourier_scale
        5.0
        """
        if name not in _PROBLEMS:
            raise ValueError(f"`name` must be one of {sorted(_PROBLEMS)}. Got {name!r}.")
        return cls().set_params(**_USUAL | _PROBLEMS[name]).set_params(**changes)

    def _fit(self, given):
        training = _resolve_training(self)
        prior, fewest = _resolve_prior(self), (FEWEST_TO_LEARN, _neon_training.FEWEST_WITH_NOISE)
        train: Callable = train_conditioned
        if prior.is_trained:
            train, fewest = _neon_training.train_epinet, ()
        train = functools.partial(train, prior=prior, n_draws=int(self.n_draws))
        return _fit_operator(self, given, training, train, *fewest)

    # Parts of the fitted model, which the class docstring describes.
    index_ = property(attrgetter("fitted_.draws.index"), doc="")


@parameters("estimators.OperatorEnsembleRegressor", kind="estimator")
class OperatorEnsembleRegressor(OperatorRegressor):
    """An ensemble of operator networks with randomised priors, for functions as targets.

    Each member is trained on all data from initial weights of its own. Its prediction is its
    network plus `prior_scale` times a frozen random network (RPN), which makes members differ
    wherever data do not determine them. With ``prior_scale=0`` it is a deep ensemble. All members
    train side by side in one program. Where noise is learnt, members leave out functions, and stop
    after a quarter of their epochs without an improvement on these.

    Parameters
    ----------
    n_members : int, default=16
        Number of members.
    query_points : array-like of shape (q, d_y) or (q,), optional
        Points at which the columns of Y are given. By default columns are numbered from 0 to 1 and
        standardised one by one, and there are no points between them.
    network : {"split", "concat"}, OperatorNetwork or callable, default="split"
        The base network: settings of an encoder of u and a decoder of u and y, see
        `skuq.networks.OperatorNetwork`, or the kind of the decoder for default settings. Or a
        function ``network(d_u, d_y, n_outputs) -> keras.Model`` with inputs u and y.
    output_map : {"decaying", "bounded"} or callable, optional
        Last step from the network to (standardised) values: "decaying" is ``a *
        exp(-softplus(b))`` and "bounded" ``sigmoid(a) * exp(-softplus(b))``, of two numbers each,
        or a function of `keras.ops` from (.., m) to (.., m), with which each fit, and each step of
        Bayesian optimisation, compiles its own programs.
    prior_scale : float, default=1.0
        Scale of the random prior; 0 disables it. A larger one is less sure away from data.
    subsample : float or None, default=None
        Share of the functions that each member is trained on, drawn without replacement. None
        takes all.
    loss : {"auto", "relative", "squared", "huber", "nll"}, default="auto"
        "relative" divides each function's squared error by its size (Eq. 2); "auto" takes it for
        functions and "squared" for single numbers, whose size may be 0. "nll" learns the noise,
        too: predictions are mixtures of normals (Eq. 5).
    noise_std : "auto", float or array-like of shape (m,) or (q, m), default="auto"
        Standard deviation of the noise of values, in units of Y; 0 says that there is none, as in
        the paper. One for each component; where columns have scales of their own, as without query
        points, one for each column, of shape (q, m), or (q,) of one component. "auto" learns one
        for each component, and a factor of the epistemic part, from functions that networks leave
        out. For that there must be 30 functions or more; for fewer there is no noise. With
        ``loss="nll"`` the networks learn it.
    learning_rate : float, default=1e-3
        Learning rate of the optimiser.
    batch_size : int or None, default=64
        Number of rows of a batch. None takes all rows. What a row is, `batch_over` says: a pair of
        input and query point, or a function.
    batch_over : {"pairs", "functions"}, default="pairs"
        Whether a batch holds pairs of input and query point, or whole functions.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. "auto" takes as many as make 12,000 steps of the optimiser,
        or the steps of `training`.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused. Those with effect are
        `optimizer` (adam), `epsilon`, `schedule` (cosine), `final_lr_factor` (0.001, or a function
        of the number of steps; for data without noise, a lower one gives smaller errors), `warmup`,
        `clip_norm` (1.0), and `steps`: the number of steps in place of `epochs`, or a function of
        the number of functions.
    refine : bool, default=False
        Whether to minimise the squared error further after training, in double precision: by the
        Levenberg-Marquardt method for up to 1500 values, and by L-BFGS for more. For data without
        noise (``noise_std=0.0``), as results of simulations are.
    standardize : bool or "columns", default=True
        Whether to standardise inputs, query points and values, each component by itself. With
        "columns" each query point has a scale of its own, as for the paper's pollutants. There are
        predictions at the query points of Y only then.
    warm_start : bool, default=False
        Whether `fit` goes on from the previous fit. Networks and scales are those of the previous
        fit; choose fewer steps then. A fit whose networks leave functions out to learn how large
        noise and spread are starts from random weights, because they must not have seen these
        functions.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    members_ : list of Member
        Records of the trained networks, such as weights and history.
    query_points_ : ndarray of shape (q, d_y)
        Query points of the columns of Y.
    fitted_ : FittedOperator
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of
        inputs, query points and values.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    noise_std_ : ndarray of shape (m,), or (q, m) where columns have scales of their own
        Standard deviation of the noise, in units of Y: known, learnt, or 0.
    n_parameters_ : int
        Number of trained parameters. Those of all members count.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    NEONRegressor : One to five networks, with a conditioned prior or an EpiNet.

    References
    ----------
    M. A. Bhouri et al., "Scalable Bayesian optimization with randomized prior networks", 2023.
    I. Osband et al., "Randomized prior functions for deep reinforcement learning", 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import OperatorEnsembleRegressor
    >>> from skuq.training import Training
    >>> u, y = np.linspace(0.5, 2, 8)[:, None], np.linspace(0, 1, 20)
    >>> settings = {"training": Training(steps=200), "noise_std": 0.0, "random_state": 0}
    >>> model = OperatorEnsembleRegressor(2, query_points=y, **settings)
    >>> model.fit(u, np.sin(u * y)).sample_y([[1.2]], n_samples=3, random_state=0).shape
    (1, 20, 3)
    """

    n_members: int = field(default=16, kw_only=False)
    query_points: Any = None
    network: Any = "split"
    output_map: Any = None
    prior_scale: float = 1.0
    subsample: Any = None
    loss: str = "auto"
    noise_std: Any = "auto"
    learning_rate: float = 1e-3
    batch_size: int | None = 64
    batch_over: str = "pairs"
    epochs: int | str = "auto"
    training: Any = "auto"
    refine: bool = False
    standardize: Any = True
    warm_start: bool = False
    random_state: Any = None
    verbose: int | None = None

    _parameter_constraints = {
        **_CONSTRAINTS,
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "prior_scale": [Interval(Real, 0, None, closed="left")],
        "subsample": [Interval(Real, 0, 1, closed="neither"), None],
    }

    def _fit(self, given):
        train = functools.partial(
            _neon_training.train_ensemble,
            n_members=int(self.n_members),
            prior_scale=self.prior_scale,
            subsample=self.subsample,
        )
        return _fit_operator(self, given, _resolve_training(self), train)


def _fit_operator(
    model: Any,
    given: Given,
    training: dict[str, Any],
    train: Callable,
    fewest_to_learn: int = _neon_training.FEWEST_FUNCTIONS,
    fewest_with_noise: int | None = None,
) -> Fit:
    """Read functions, and train networks whose draws differ in one of several ways.

    Parameters
    ----------
    model : OperatorRegressor
    given : Given
    training : dict
        Given settings of the training, by name.
    train : callable
        ``train(trainer) -> draws, widths`` trains the networks of an `OperatorTrainer`.
    fewest_to_learn : int
        Fewest functions from which the noise is learnt.
    fewest_with_noise : int, optional
        Fewest functions with a known noise of which networks leave some out. None leaves none out.
    """
    by_column, standardize = model.standardize == "columns", bool(model.standardize)
    inputs = FunctionInputs(model.query_points, standardize=standardize, only_fitted=by_column)
    targets = FunctionTargets(
        model.loss,
        model.output_map,
        standardize=standardize,
        by_column=by_column or model.query_points is None,
        narrow_constants=model.pretrained is None,
    )
    task = read_task(model, inputs, targets, given)
    task = replace(task, rows=task.rows.take(task.rows.used))
    # With noise, networks leave functions out: their errors there tell how large it is.
    n, is_known = len(task.rows.y), not isinstance(model.noise_std, str)
    # A given model has seen all functions, and a likelihood learns its noise itself.
    learns_noise = not is_known and model.loss != "nll" and model.pretrained is None
    leaves_out = learns_noise = learns_noise and n >= fewest_to_learn
    if is_known and fewest_with_noise is not None:
        leaves_out = n >= fewest_with_noise and bool(np.any(model.noise_std))
    previous = vars(model).get("fitted_") if model.warm_start else None
    if previous is not None:
        _refuse_other_widths(previous, task)
    if leaves_out:
        previous = None  # its networks have seen the functions that would be left out
    # From here on everything is in standardised units; a given model leaves its residuals.
    base, data = _standardise(task, model.pretrained, previous)
    task = replace(task, data=data)
    trainer = _make_trainer(model, task, training, learns_noise, previous)
    with training_progress(model.verbose) as progress:
        draws, learnt = train(replace(trainer, report=progress.epochs))
    # With a known noise only the epistemic part was to be found.
    factor, noise = learnt or (np.ones_like(trainer.noise), trainer.noise)
    widths = None
    if noise.any() or not np.allclose(factor, 1, rtol=1e-12):
        widths = Widths(factor, noise * task.targets.scale_)
    return Fit(FittedOperator(task.inputs, task.targets, draws, base, widths), task.attributes)


def _resolve_prior(model: NEONRegressor) -> ConditionedPrior | EpiNet:
    """Resolve the parameter `prior` of NEON; ValueError if other parameters contradict it."""
    prior = _params.resolve_settings(model, "prior")
    # Conditioning linearises the network in its weights and needs normal errors: only our own
    # base networks have these derivatives, and nothing may follow them.
    obstacle = _params.first_true(
        {
            "`pretrained`": model.pretrained is not None,
            "`output_map`": model.output_map is not None,
            "a function as `network`": callable(model.network),
            "loss='nll'": model.loss == "nll",
        }
    )
    if obstacle is not None and isinstance(model.prior, str) and model.prior == "auto":
        prior = EpiNet()
    is_trained, learns_noise = prior.is_trained, isinstance(model.noise_std, str)
    problems = {
        "`refine=True` changes base networks only, and is not possible with a trained EpiNet. Got "
        f"prior={model.prior!r}. Use prior='conditioned'.": is_trained and model.refine,
        f"A conditioned prior is not possible with {obstacle}. Got prior={model.prior!r}. "
        "Use prior='epinet'.": not is_trained and obstacle is not None,
        # Independent of the number of functions, so that a search does not fail at its 15th point.
        "The `scale` of a conditioned prior is learnt together with the noise. Got "
        f"prior={model.prior!r} and noise_std='auto'. Give `noise_std`, which is 0.0 for data "
        "without noise, or leave `scale` out.": (
            not is_trained and learns_noise and prior.scale not in ("auto", 0)
        ),
    }
    _params.refuse(problems)
    return prior


def _resolve_training(model: Any) -> dict[str, Any]:
    """List the given settings of the training; ValueError if parameters contradict each other."""
    training = _params.resolve_settings(model, "training").fields(_neon_training.TRAINING_FIELDS)
    noise_std, is_known = model.noise_std, not isinstance(model.noise_std, str)
    # Validation of parameters has checked numbers, but not the entries of arrays.
    noise = np.asarray(noise_std if is_known else 0.0, dtype="float64")
    is_default = isinstance(model.network, str) and model.network == "split"
    # Refinement goes on with the squared error alone, to which it fits the values exactly.
    unrefined = {
        f"loss={model.loss!r}": model.loss in ("huber", "nll"),
        "`output_map`": model.output_map is not None,
        "`pretrained`": model.pretrained is not None,
        "a function as `network`": callable(model.network),
        f"noise_std={noise_std!r}": not is_known or bool(noise.any()),
    }
    # With a given model only an EpiNet is trained, on its residuals: there is no base network.
    excluded = {"network": not is_default, "output_map": model.output_map is not None}
    name = _params.first_true(excluded) or "network"
    problems = {
        f"`noise_std` must be finite numbers >= 0. Got {noise_std!r}.": (
            not (noise >= 0).all() or not np.isfinite(noise).all()
        ),
        "loss='nll' learns the noise: leave `noise_std` out.": is_known and model.loss == "nll",
        "`epochs` and the `steps` of `training` both give the length of the training. Got "
        f"epochs={model.epochs} and steps={training.get('steps')!r}. Leave one of them out.": (
            model.epochs != "auto" and "steps" in training
        ),
        "With batch_size=None a batch holds everything, so that batch_over='functions' has no "
        "effect. Leave `batch_over` out, or give a `batch_size`.": (
            model.batch_over == "functions" and model.batch_size is None
        ),
        "A constant `schedule` has no `final_lr_factor`. Leave one of them out of `training`.": (
            training.get("schedule") == "constant" and "final_lr_factor" in training
        ),
        f"`pretrained` gives the prediction: it excludes `{name}`. Got {getattr(model, name)!r}. "
        "Leave one of them out.": model.pretrained is not None and any(excluded.values()),
        "`refine=True` fits the squared error of data without noise, and is not possible with "
        f"{_params.first_true(unrefined)}. Set noise_std=0.0 and leave out what changes the "
        "loss.": (model.refine and any(unrefined.values())),
    }
    _params.refuse(problems)
    return training


def _refuse_other_widths(previous, task):
    """Raise ValueError if a warm start's data have other widths than those of the previous fit."""
    before, points = previous.inputs, task.inputs.query_points
    for what, was, is_now in (
        ("features of X", len(before.scaling.scale_), task.rows.X.shape[1]),
        ("columns of `query_points`", before.query_points.shape[1], points.shape[1]),
        ("components of Y", previous.targets.scale_.shape[1], task.rows.y.shape[2]),
    ):
        if was != is_now:
            raise ValueError(
                f"`warm_start=True` goes on with a fit of {was} {what}. Got {is_now} {what}. Set "
                "warm_start=False to start anew."
            )


def _make_trainer(model, task, training, learns_noise, previous) -> _neon_training.OperatorTrainer:
    """Make the trainer of a regressor's networks on the standardised data of a task.

    Parameters
    ----------
    model : OperatorRegressor
    task : Task
    training : dict
        Given settings of the training, by name.
    learns_noise : bool
        Whether there are enough functions to learn the noise.
    previous : FittedOperator or None
        Earlier fit from whose weights training starts.
    """
    n_functions, n_queries = task.rows.y.shape[:2]
    # The base network, or the JSON of the Keras model that the user builds.
    base: Any = None
    if model.pretrained is None:
        n_columns = task.inputs.query_points.shape[1]
        sizes = len(task.inputs.scaling.scale_), n_columns, task.targets.head.n_raw
        network = _params.resolve_settings(model, "network")
        if callable(network):  # the user's function
            check_builder("`network`", network, "d_u, d_y, n_outputs")
            base = _operator_network.keras_base(network(*sizes), *sizes)
        else:
            base = network.describe(*sizes)
    trainer = _neon_training.OperatorTrainer(
        base=base,
        head=task.targets.head,
        data=task.data,
        n_queries=n_queries,
        recipe=_neon_training.operator_recipe(model, training, n_functions, n_queries),
        by_function=model.batch_over == "functions",
        entropy=task.entropy,
        weight=task.rows.weight,
        learns_noise=learns_noise,
        noise=_standardised_noise(model.noise_std, task.targets.scale_),
        expects_none=isinstance(model.noise_std, str) and not learns_noise,
        refine=model.refine,
        previous=None if previous is None else previous.draws,
    )
    if learns_noise and not trainer.can_leave_out:
        # Few different inputs, each measured several times: repeats tell the noise.
        return replace(trainer, learns_noise=False, noise=trainer.noise_of_repeats()[0])
    return trainer


def _standardise(task, pretrained, previous):
    """Learn all scales, or keep those of a previous fit, and make training data in these units.

    Returns
    -------
    given : GivenBase or None
        The given model, if there is one.
    data : TrainingData
        A row is a pair of a function's input and a query point.
    """
    inputs, targets, rows, given = task.inputs, task.targets, task.rows, None
    if previous is None:
        inputs.fit(rows.X)
        targets.fit(rows.y)
    else:  # the same weights would mean something else in other units
        inputs.take_scales(previous.inputs)
        targets.take_scales(previous.targets, rows.y)
    if pretrained is None:
        x, y = inputs.transform(rows.X), targets.transform(rows.y)
    else:  # learn the residuals of the given model
        names = task.features.get("feature_names_in_")
        given = GivenBase(pretrained, inputs, targets.head.n_outputs, names)
        if previous is None or previous.given is None:
            given.fit(rows.X)
        else:
            given.mean_, given.scale_ = previous.given.mean_, previous.given.scale_
        x, y = given.features(rows.X), targets.transform(rows.y, given.mean(rows.X))
    return given, TrainingData.without_validation(x, y, targets.pair_weights(rows.y, rows.weight))


def _standardised_noise(noise_std, scale):
    """Divide the known noise by the scale of values (q or 1, m); 0 if it is not known."""
    noise = 0.0 if isinstance(noise_std, str) else np.asarray(noise_std, dtype="float64")
    n_columns, m = scale.shape
    if m == 1 and n_columns > 1 and np.shape(noise) == (n_columns,):
        noise = noise[:, None]  # one for each column of y
    try:
        return np.broadcast_to(noise, scale.shape) / scale
    except ValueError as error:
        n_outputs, each = (n_columns, "columns") if m == 1 else (m, "components")
        raise ValueError(
            f"`noise_std` must be one number, or one for each of the {n_outputs} {each} of y. Got "
            f"shape {noise.shape}."
        ) from error
