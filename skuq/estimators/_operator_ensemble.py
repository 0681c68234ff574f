"""Many operator networks: NEON's rivals, with randomised priors (RPN) or without."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np

from skuq._params import Interval
from skuq._registry import saved_as
from skuq._seeds import generator, trial_seed
from skuq.estimators._neural import completed
from skuq.estimators._operator import OPERATOR_CONSTRAINTS, OperatorRegressor
from skuq.estimators._operator_draws import OperatorDraws
from skuq.networks._epinet import EpistemicNetwork
from skuq.predictive import Posterior
from skuq.training._draws import read_network

__all__ = ["OperatorEnsembleRegressor"]


@saved_as("estimators.OperatorEnsembleRegressor", kind="estimator")
class OperatorEnsembleRegressor(OperatorRegressor):
    """An ensemble of operator networks, each with a frozen random network beside it.

    Every member is trained from first weights of its own on all data; what it predicts is its
    network plus `prior_scale` times one that is not trained (RPN), so that members differ where
    data do not tell them otherwise. With prior_scale=0 it is a deep ensemble. All members train
    side by side in one program.

    Parameters
    ----------
    n_members : int, default=16
    prior_scale : float, default=1.0
    bootstrap : float or None, default=None
        Share of the functions that each member sees, drawn without replacement.
    query_points, encoder_units, latent, decoder, decoder_units, fourier_scale, activation, \
factorize, build_base, output_map, loss, steps, batch_size, batch_over, optimizer, \
learning_rate, schedule, final_lr_factor, warmup, clip_norm, standardize, random_state, verbose
        As in `NEONRegressor`. With loss="nll" each member has its own noise.

    Attributes
    ----------
    members_ : list of Member
    query_points_, scaling_, entropy_, n_parameters_, n_features_in_, feature_names_in_ :
        As in `NEONRegressor`; the parameters of all members together.

    See Also
    --------
    NEONRegressor : One network, many times smaller.

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

    def _train(self, data, n_queries, recipe, order, report):
        from skuq.training import train_stack

        network = EpistemicNetwork(
            self._base(), self._head.n_raw, prior_scale=float(self.prior_scale)
        )
        numbers = range(self.n_members)
        splits = permutations = None
        n = len(data.x) // n_queries
        if self.bootstrap is not None:
            size = max(1, round(self.bootstrap * n))
            chosen = [
                generator(self.entropy_, "bootstrap", k).permutation(n)[:size] for k in numbers
            ]
            columns = np.arange(n_queries)
            splits = [((own[:, None] * n_queries + columns).ravel(), None) for own in chosen]
        if order is not None:
            permutations = [order(generator(self.entropy_, "order", k)) for k in numbers]
        members = train_stack(
            network,
            self._head,
            recipe,
            data,
            [trial_seed(self.entropy_, k) for k in numbers],
            splits=splits,
            permutations=permutations,
            report=report,
        )
        self.members_ = [members[k] for k in completed(members)]
        self.n_parameters_ = sum(len(member.weights) for member in self.members_)

    def _index(self, n_draws, rng, independent=False):
        """Positions of members."""
        if independent:
            return rng.integers(len(self.members_), size=n_draws)
        return np.arange(len(self.members_))

    def _raw(self, rows, index):
        from skuq.training import predict_draws

        draws = {k: predict_draws(self.members_[k], rows)[0] for k in np.unique(index)}
        return np.stack([draws[k] for k in index])

    def _posterior(self, index, query_points):
        shape, n = self._outer_shape(query_points), len(self.members_)
        network = read_network(self.members_[0].network)
        function = OperatorDraws(network, self._head, shape, n)
        arguments = function.arguments(
            self.members_, None, self.scaling_, self._queries(query_points)
        )
        return Posterior(function, arguments, function.key(arguments), n, shape)
