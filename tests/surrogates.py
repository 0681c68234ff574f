"""Small surrogates for tests of Bayesian optimisation: some milliseconds a fit."""

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from skuq.bayesopt import BayesianOptimizer, MultiStart, _step, _surrogate
from skuq.predictive import Posterior

moves_off_faces, posterior_of = _step.moves_off_faces, _surrogate.posterior_of
SQUARE = [(-1, 1)] * 2


def fourier(xp, arguments, X):
    """Draws of a Gaussian process by random Fourier features."""
    frequencies, phases, weights, centre, scale = arguments
    features = xp.cos(xp.matmul(X, frequencies) + phases)
    return centre + scale * xp.matmul(weights, xp.transpose(features))


class JointProcess(RegressorMixin, BaseEstimator):
    """A Gaussian process whose draws are functions, in NumPy or on tensors too."""

    fits = []

    def __init__(self, length=0.5, noise=1e-6, compiled=False, random_state=None):
        self.length, self.noise, self.compiled = length, noise, compiled
        self.random_state = random_state

    def fit(self, X, y):
        JointProcess.fits.append(X.copy())
        self.X_, self.y_, self.n_features_in_ = X, y, X.shape[1]
        return self

    def posterior_fn(self, n_draws, random_state):
        rng, m = np.random.default_rng(random_state), 64
        frequencies = rng.normal(size=(self.n_features_in_, m)) / self.length
        phases, scale = rng.uniform(0, 2 * np.pi, m), self.y_.std() or 1.0
        features = np.cos(self.X_ @ frequencies + phases)
        values = (self.y_ - self.y_.mean()) / scale
        # Matheron: a draw of the prior, moved by what it misses at the results.
        prior = rng.normal(size=(n_draws, m)) * np.sqrt(2 / m)
        kernel = 2 / m * features @ features.T + self.noise * np.eye(len(values))
        errors = np.sqrt(self.noise) * rng.normal(size=(n_draws, len(values)))
        missed = np.linalg.solve(kernel, (values - prior @ features.T - errors).T)
        weights = prior + 2 / m * missed.T @ features
        arguments = (frequencies, phases, weights, np.array(self.y_.mean()), np.array(scale))
        key = "fourier" if self.compiled else None
        self.drawn_ = Posterior(fourier, arguments, key, n_draws)
        return self.drawn_


class Agreeing(RegressorMixin, BaseEstimator):
    """Draws that agree about the best point: copies of it are the best batch of "lei"."""

    def fit(self, X, y):
        return self

    def posterior_fn(self, n_draws, random_state):
        def peak(xp, arguments, X):
            return arguments[0][:, None] - xp.sum(xp.square(X - 0.3), axis=1)[None]

        return Posterior(peak, (1 + np.linspace(0, 1e-3, n_draws),), None, n_draws)


class Marginal(JointProcess):
    """The same process by its means and standard deviations."""

    def predict(self, X, return_std=False):
        draws = JointProcess.posterior_fn(self, 64, 0)(X)
        return (draws.mean(axis=0), draws.std(axis=0)) if return_std else draws.mean(axis=0)

    posterior_fn = property()  # so that there is none


def search(estimator, acquisition="lei", bounds=SQUARE, *, n_restarts=10, **settings):
    settings = {"maximizer": MultiStart(n_restarts=n_restarts), "n_draws": 32, **settings}
    return BayesianOptimizer(estimator, bounds, acquisition, random_state=0, **settings)


def told(optimizer, n=6, seed=0):
    """Tell a search in the square the values of a bowl."""
    X = np.random.default_rng(seed).uniform(-1, 1, (n, 2))
    return optimizer.tell(X, -((X - 0.3) ** 2).sum(axis=1))
