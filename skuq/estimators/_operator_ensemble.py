"""Ensembles of operator networks, with randomised priors (RPN) or without."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np

from skuq._params import Interval
from skuq._registry import saved_as
from skuq._seeds import generator
from skuq.estimators._operator import OPERATOR_CONSTRAINTS, OperatorRegressor
from skuq.estimators._operator_training import N_FOLDS
from skuq.estimators._operator_widths import fit_widths
from skuq.fitted._operator import MemberDraws
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import ARRAYS
from skuq.training._members import find_completed


@saved_as("estimators.OperatorEnsembleRegressor", kind="estimator")
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
    prior_scale : float, default=1.0
        Scale of the random prior; 0 disables it. A larger one is less sure away from data.
    bootstrap : float or None, default=None
        Share of the functions that each member is trained on, drawn without replacement. None
        takes all.
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
    fitted_ : FittedOperator
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of
        inputs, query points and values.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    noise_std_ : ndarray of shape (m,), or (q, m) where columns have scales of their own
        Standard deviation of the noise, in units of Y: known, learnt, or 0.
    n_parameters_ : int
        Number of trained parameters, of all members together.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    NEONRegressor : One to five networks, with an EpiNet or a conditioned prior.

    References
    ----------
    M. A. Bhouri et al., "Scalable Bayesian optimization with randomized prior networks", 2023.
    I. Osband et al., "Randomized prior functions for deep reinforcement learning", 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import OperatorEnsembleRegressor
    >>> u, y = np.linspace(0.5, 2, 8)[:, None], np.linspace(0, 1, 20)
    >>> model = OperatorEnsembleRegressor(4, query_points=y, steps=200, random_state=0)
    >>> model.fit(u, np.sin(u * y)).sample_y([[1.2]], n_samples=3, random_state=0).shape
    (1, 20, 3)
    """

    _parameter_constraints: dict = {
        **OPERATOR_CONSTRAINTS,
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "prior_scale": [Interval(Real, 0, None, closed="left")],
        "bootstrap": [Interval(Real, 0, 1, closed="right"), None],
    }

    def __init__(
        self,
        n_members=16,
        *,
        prior_scale=1.0,
        bootstrap=None,
        query_points=None,
        encoder_units=(64, 64),
        latent=64,
        decoder="split",
        decoder_units=(64, 64),
        fourier_scale=None,
        activation="gelu",
        factorize=True,
        build_base=None,
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
        self.n_members = n_members
        self.prior_scale = prior_scale
        self.bootstrap = bootstrap
        self.query_points = query_points
        self.encoder_units = encoder_units
        self.latent = latent
        self.decoder = decoder
        self.decoder_units = decoder_units
        self.fourier_scale = fourier_scale
        self.activation = activation
        self.factorize = factorize
        self.build_base = build_base
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

    def _train(self, job, report):
        """Train the members, and learn widths on held-out functions if there is noise to learn."""
        network = EpistemicNetwork(job.base, job.head.n_raw, prior_scale=float(self.prior_scale))
        learns, left_out = job.learns_noise and self.n_members > 1, None
        if self.bootstrap is not None:
            left_out = ~np.stack([self._bootstrap(job, k) for k in range(self.n_members)])
            learns = learns and left_out.any(axis=1).all()
        elif learns:
            left_out = job.folds(self.n_members, N_FOLDS)
        members = job.train(network, self.n_members, report, left_out=left_out, validate=learns)
        kept = find_completed(members)
        draws = MemberDraws(tuple(members[k] for k in kept))
        if not learns or len(kept) < 2:
            return draws, None
        return draws, self._widths(job, draws, left_out[kept])

    def _widths(self, job, draws, left_out):
        """Fit the epistemic factor and the noise to functions that members have left out."""
        values, _ = job.head.values(ARRAYS, draws.raw(job.data.x, draws.index))
        unseen = np.repeat(left_out, job.n_queries, axis=1)[..., None]
        n_unseen = unseen.sum(axis=0)
        mean = (values * unseen).sum(axis=0) / np.maximum(n_unseen, 1)
        weight = job.weight * left_out.any(axis=0)
        error = job.data.y - mean
        return fit_widths(error**2, values.var(axis=0), weight, job.noise.shape)

    def _bootstrap(self, job, k):
        """Draw the functions that member `k` trains on, as a mask."""
        size = max(1, round(self.bootstrap * job.n_functions))
        chosen = generator(job.entropy, "bootstrap", k).permutation(job.n_functions)[:size]
        return np.isin(np.arange(job.n_functions), chosen)
