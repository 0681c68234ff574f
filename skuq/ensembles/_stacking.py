"""Stacking of predictive distributions, and the calibration of mixtures of classes."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, logsumexp, xlogy

from skuq._params import check_weights
from skuq.predictive._calibration import Calibration

_MOST_STEPS = 1000  # of expectation maximisation
_TOLERANCE = 1e-6  # the iteration ends when no weight changes by more


def stack(
    held_out_log_density: ArrayLike,
    row_weight: ArrayLike | None = None,
    prior: ArrayLike | None = None,
) -> np.ndarray:
    """Find the mixture weights (n_models,) that maximise the likelihood of held-out rows.

    This is the one rule by which skuq weighs kinds of models.

    Parameters
    ----------
    held_out_log_density : array-like of shape (n_models, n_samples)
        In nats. Rows to which every model gives probability 0 are ignored.
    row_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.
    prior : array-like of shape (n_models,), optional
        Numbers of further rows that each model alone predicts, a Dirichlet prior: on few rows the
        weights would otherwise be those of chance. By default they are 20 in all, shared equally.
        They count beside the effective number of rows.

    Raises
    ------
    ValueError
        If densities are NaN or of another shape, or there is no prior of each model.

    Notes
    -----
    The log likelihood is concave in the weights, so that expectation maximisation converges to the
    maximum (Yao et al. 2018, Eq. 4).
    """
    log_likelihood = np.asarray(held_out_log_density, dtype=float)
    if log_likelihood.ndim != 2 or not log_likelihood.size or np.isnan(log_likelihood).any():
        raise ValueError(
            "`held_out_log_density` must have shape (n_models, n_samples) and no NaN. "
            f"Got an array of shape {log_likelihood.shape}."
        )
    n_models = len(log_likelihood)
    weight = check_weights(row_weight, log_likelihood.T)
    further = np.asarray(stacking_prior(n_models) if prior is None else prior, dtype=float)
    if further.shape != (n_models,) or not (further >= 0).all():
        raise ValueError(f"`prior` must have {n_models} numbers >= 0. Got {prior!r}.")
    largest = log_likelihood.max(axis=0)  # (n_samples,): divided out, against underflow
    rows = np.isfinite(largest) & (weight > 0)
    shares = np.full(n_models, 1 / n_models)
    if not rows.any():
        return shares
    likelihood = np.exp(log_likelihood[:, rows] - largest[rows])
    weight = weight[rows] / weight[rows].sum()
    # Weights of the rows, which share 1 with the further ones.
    n_effective = 1 / np.square(weight).sum()
    further, weight = (v / (n_effective + further.sum()) for v in (further, n_effective * weight))
    for _ in range(_MOST_STEPS):
        # The new weight of a model is its mean posterior probability over the rows:
        # w_k <- sum_i a_i w_k p_ki / sum_j w_j p_ji, with row weights a_i. Further rows add theirs.
        updated = shares * (likelihood @ (weight / (shares @ likelihood))) + further
        change, shares = abs(updated - shares).max(), updated
        if change < _TOLERANCE:
            break
    return shares / shares.sum()


_TEMPERATURES = np.exp(np.linspace(-1.2, 1.6, 15))  # that a mixture's temperature is chosen from
_TEMPERATURE_SPREAD = 0.5  # standard deviation of the prior of its logarithm
#: Factor of the temperature when more networks are averaged later: averages are less sure.
AVERAGING_FACTOR = 0.9
PRIOR_ROWS = 20.0  # that stacking adds to the held-out rows, divided evenly among the models
_DROPPED = 0.2  # weight of the members together that are dropped
_CONSTANT_ROWS = 0.3  # rows that the class shares are taken to predict better than models do


def stacking_prior(n_models: int, n_first: int | None = None) -> np.ndarray:
    """Return the rows that the prior of stacking adds for each model: 20, for the first alike."""
    n_first = n_models if n_first is None else min(n_first, n_models)
    return np.where(np.arange(n_models) < n_first, PRIOR_ROWS / n_first, 0.0)


def fit_class_mixture(
    logits: np.ndarray,
    codes: np.ndarray,
    weight: np.ndarray,
    shares: np.ndarray,
    n_first: int | None = None,
    weights: np.ndarray | None = None,
) -> tuple[np.ndarray, Calibration]:
    """Fit a mixture of classifiers: weights w, a temperature T, and the weight a of class shares.

    The mixture predicts ``(1 - a) * sum_k w_k softmax(logits_k / T) + a * shares``. Weights, T and
    a maximise the likelihood of rows that the models were not trained on, times a prior. On few
    rows the prior divides the weight evenly among the models, T is above 1, and a is at least
    0.3 / (n + 20.3): that no row of n was an error does not show that there are none. Classes
    without such a row keep their whole share, since nothing shows that models would recognise them.

    Parameters
    ----------
    logits : ndarray of shape (n_models, n, n_classes)
        Predictions of rows by models that were not trained on them.
    codes, weight : ndarray of shape (n,)
        Classes of the rows, and their weights.
    shares : ndarray of shape (n_classes,)
        Shares of the classes, all positive.
    n_first : int, optional
        Number of first models that the prior divides the weight among; by default all.
    weights : ndarray of shape (n_models,), optional
        Weights w that are given, so that only T and a are fitted.

    Returns
    -------
    weights : ndarray of shape (n_models,)
        Weights w of the models, which sum to 1.
    calibration : Calibration
        Its `temperature` is T, for averages of as many networks as predict the rows here. Its
        `constant` are probabilities c of classes: the mixture predicts
        ``(1 - c.sum()) * p + c``, where p are the weighted probabilities of the models.

    References
    ----------
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman (2018), "Using Stacking to Average Bayesian
    Predictive Distributions", Section 3 (pseudo-Bayesian model averaging).
    """
    rows = np.arange(len(codes))
    n_models = len(logits) if weights is None else 1
    prior = np.append(stacking_prior(n_models, n_first), _CONSTANT_ROWS)
    n_effective = weight.sum() ** 2 / np.square(weight).sum()
    fits = []
    for temperature in _TEMPERATURES:
        log_proba = log_softmax(logits / temperature, axis=-1)[:, rows, codes]
        if weights is not None:  # one model, the mixture
            log_proba = logsumexp(log_proba, axis=0, b=weights[:, None], keepdims=True)
        log_proba = np.append(log_proba, np.log(shares)[codes][None], axis=0)
        found = stack(log_proba, weight, prior)
        fit = np.average(logsumexp(log_proba, axis=0, b=found[:, None]), weights=weight)
        # Members trained on few rows are too sure.
        surprise = (np.log(temperature) - n_effective**-0.5) / _TEMPERATURE_SPREAD
        loss = 0.5 * surprise**2 - n_effective * fit
        fits.append((loss - xlogy(prior, found).sum(), found))
    losses = np.array([loss for loss, _ in fits])
    best = int(losses.argmin())
    found, temperature = fits[best][1], float(_TEMPERATURES[best])
    if 0 < best < len(fits) - 1:  # between those of the grid, by a parabola
        below, least, above = losses[best - 1 : best + 2]
        steps = 0.5 * (below - above) / (below - 2 * least + above)
        temperature *= float(_TEMPERATURES[1] / _TEMPERATURES[0]) ** steps
    weights = found[:-1] / found[:-1].sum() if weights is None else weights
    judged = np.bincount(codes, weight, minlength=len(shares)) > 0
    constant = shares * np.where(judged, found[-1], 1.0)
    return weights, Calibration(temperature=float(temperature), constant=tuple(constant.tolist()))


def drop_light(weights: np.ndarray, min_members: int = 1) -> np.ndarray:
    """Set the lightest weights of a mixture to 0 that together are at most a fifth.

    Members that few rows cannot tell from useless ones only make predictions slower. The heaviest
    `min_members` keep theirs, and the result sums to 1.
    """
    order = np.argsort(weights)[: max(len(weights) - min_members, 0)]
    kept = weights.copy()
    kept[order[np.cumsum(weights[order]) <= _DROPPED]] = 0
    return kept / kept.sum()
