"""Choose NOMU's readout by the likelihood of held-out rows.

The readout maps the raw uncertainty r to standard deviations. Its parameters are c, l_min, l_max
and a factor of the noise.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from skuq._utils._checks import first_true
from skuq._utils._messages import warn_user
from skuq.estimators._nomu_fit import is_noiseless
from skuq.exceptions import SmallValidationWarning
from skuq.fitted._nomu import Readout, split_sides
from skuq.networks._nomu import READOUTS
from skuq.predictive._calibration import fit_epistemic_scale, fit_readout

# Candidates of the paper's UCI study, in units of the standardised y.
_L_MINS = np.geomspace(0.005, 0.8, 100)
_L_MAXS = np.geomspace(0.8, 10.0, 80)
_CHOICES = ("auto", "nll")
_FEW_ROWS = 30  # held-out rows; with fewer the likelihood chooses neither l_min nor l_max
_L_MIN, _L_MAX = 0.005, 2.0  # the least l_min, and l_max, if the likelihood does not choose them
_PRIOR_ROWS = 8  # with at most so many held-out rows the band is on average as wide as y varies


def chooses_readout(model) -> bool:
    """Tell whether c, l_min or l_max is left to be chosen on held-out rows."""
    return any(value in _CHOICES for value in (model.c, model.l_min, model.l_max))


def check_parameters(model) -> None:
    """Raise ValueError where parameters of a NOMURegressor contradict each other."""
    _check_readout(model)
    if (isinstance(model.cv, Integral) or model.cv == "gaps") and not model.refit:
        raise ValueError("`cv` trains on parts of the rows only: it needs refit=True.")
    trains_mean = chooses_readout(model) and model.pretrained is None
    if model.early_stopping is True and model.connect_gradient and trains_mean:
        raise ValueError(
            "`early_stopping` trains the mean f before the uncertainty r, and "
            "connect_gradient=True needs them to "
            "train together: give up one of them."
        )
    if model.pretrained is not None and (model.noise == "learned" or model.build_f is not None):
        raise ValueError(
            "`pretrained` gives the prediction: it excludes noise='learned' and `build_f`."
        )
    if model.refine:
        _check_refine(model)


def _check_refine(model):
    """Raise ValueError unless f can be refined."""
    conflicts = {
        f"noise={model.noise!r}": not is_noiseless(model),
        "early_stopping=True": model.early_stopping is True,
        "connect_gradient=True": model.connect_gradient,
        "`pretrained`": model.pretrained is not None,
        "`build_f`": model.build_f is not None,
    }
    if reason := first_true(conflicts):
        raise ValueError(
            "`refine=True` makes the mean interpolate data without noise, before r is trained. It "
            f"is not possible with {reason}. Set noise=0.0 and leave the others at their defaults."
        )


def _check_readout(model):
    """Raise ValueError where c, l_min and l_max contradict each other."""
    l_min, l_max = model.l_min, model.l_max
    if (l_min in _CHOICES or l_max in _CHOICES) and model.c not in _CHOICES:
        raise ValueError(
            f"`l_min` and `l_max` are chosen together with c: with c={model.c!r} give numbers, "
            f"for example l_min=0.001 and l_max=2. Got {l_min!r} and {l_max!r}."
        )
    lowest = _L_MINS[0] if l_min in _CHOICES else l_min
    highest = _L_MAXS[-1] if l_max in _CHOICES else l_max
    if highest <= lowest:
        raise ValueError(
            f"`l_max` must be larger than `l_min`. Got l_min={l_min}, l_max={l_max}, "
            f'where "auto" and "nll" try l_min from {_L_MINS[0]:g} and l_max up to {_L_MAXS[-1]:g}.'
        )
    if l_min == 0 and model.c in _CHOICES:
        raise ValueError(
            "With `l_min` at 0 some rows would have no width at all, and c no value. Give a "
            'small number, or l_min="auto"; or a number for `c`.'
        )


class Evidence(NamedTuple):
    """Networks and rows by which a readout is chosen.

    Attributes
    ----------
    held_out : list of (NomuNetwork, Rows)
        Networks, each with rows that it was not trained on.
    network : NomuNetwork
        Final network.
    rows : Rows
        Training rows of the final network.
    raw : ndarray of shape (n, n_sides * m)
        Raw uncertainty of the final network at artificial inputs.
    """

    held_out: list
    network: Any
    rows: Any
    raw: np.ndarray


def warn_of_few_rows(model, n_rows: int) -> None:
    """Warn if the likelihood of few held-out rows is to choose the readout."""
    chosen = [name for name in ("c", "l_min", "l_max") if getattr(model, name) == "nll"]
    if chosen and n_rows < _FEW_ROWS:
        better = f"{' and '.join(chosen)} at" if len(chosen) < 3 else "all three at"
        warn_user(
            f"The likelihood of {n_rows} held-out rows is too uncertain to choose "
            f'{", ".join(chosen)}. Leave {better} "auto". If the data have no noise, set '
            "noise=0.0.",
            SmallValidationWarning,
        )


class _HeldOut(NamedTuple):
    """Held-out rows as standardised arrays (n, m), and their weights (n,).

    The likelihood depends on the widths on both sides of the prediction, and on the side where y
    lies: `near` is the raw uncertainty on that side, `far` on the other. `noise` can be None.
    """

    error: np.ndarray
    near: np.ndarray
    far: np.ndarray
    noise: np.ndarray | None
    weight: np.ndarray


def choose_readout(model, evidence: Evidence, inputs, targets) -> Readout:
    """Choose those of l_min, l_max, c and the noise's factor that the parameters do not give."""
    rows = _held_out(model, evidence, inputs, targets)
    few = len(rows.error) < _FEW_ROWS or is_noiseless(model)
    training_error = _root_mean_square(*_errors(evidence.network, evidence.rows, inputs, targets))
    readout, highest_l_min = _choose_limits(model, rows, training_error, few)
    c, noise_factor = model.c, 1.0
    if c in _CHOICES:
        c, noise_factor = fit_epistemic_scale(
            rows.error,
            readout.std(rows.near),
            rows.noise,
            rows.weight,
            fit_noise=model.noise == "learned",
            beyond=readout.std(rows.far),
        )
    if model.c == "auto":
        # c**2 = c_nll**2 + (share / width)**2: 1 / width makes the band as wide as y varies.
        width = np.sqrt(np.mean(readout.std(evidence.raw) ** 2))
        # A constant y has no errors to choose by: the prior counts in full.
        share = min(_PRIOR_ROWS / len(rows.error), 1) if np.ptp(evidence.rows.y) else 1
        c = float(np.hypot(c, share / width))
    l_min = readout.l_min
    if model.l_min == "auto" and few:  # c * l_min >= training error
        l_min = min(max(l_min, training_error / c), highest_l_min)
    return replace(readout, l_min=l_min, c=c, noise_factor=noise_factor)


def _held_out(model, evidence, inputs, targets) -> _HeldOut:
    """Collect the held-out rows of all networks."""
    parts = [_errors(network, rows, inputs, targets) for network, rows in evidence.held_out]
    errors, raws, noises, weights = zip(*parts)
    error = np.concatenate(errors)
    up, down = split_sides(np.concatenate(raws), model.bounds)
    return _HeldOut(
        error,
        np.where(error > 0, up, down),
        np.where(error > 0, down, up),
        None if noises[0] is None else np.concatenate(noises),
        np.concatenate(weights),
    )


def _choose_limits(model, rows, training_error, few) -> tuple[Readout, float]:
    """Choose l_min and l_max: by likelihood, or with `few` rows by rule.

    Returns the readout, and the largest l_min that is below all candidates for l_max.
    """
    l_maxs = _candidates(model.l_max, _L_MAX if few else None, _L_MAXS)
    highest = min(_L_MINS[-1], 0.5 * l_maxs[0])
    floor = min(max(training_error, _L_MIN), highest)
    l_mins = _candidates(model.l_min, floor if few else None, _L_MINS)
    l_min, l_max = l_mins[0], l_maxs[0]
    if len(l_mins) > 1 or len(l_maxs) > 1:
        l_min, l_max, _ = fit_readout(
            rows.error,
            rows.near,
            READOUTS[model.readout],
            rows.weight,
            l_mins,
            l_maxs,
            aleatoric=rows.noise,
            raw_beyond=rows.far,
        )
    return Readout(model.readout, model.bounds, l_min, l_max), highest


def _candidates(given, fixed, grid):
    """List the values to choose l_min or l_max from: the given one, the fixed one or a grid."""
    if given == "nll" or (given == "auto" and fixed is None):
        return grid
    return np.array([fixed if given == "auto" else given])


def _errors(network, rows, inputs, targets):
    """Compute errors, raw uncertainty and noise of rows, standardised, and their weights."""
    mean, raw, noise = network.predict(rows.X, inputs, targets)
    unit = targets.scaling.scale_
    return (rows.y - mean) / unit, raw, None if noise is None else noise / unit, rows.weight


def _root_mean_square(error, _, noise, weight):
    """Compute the root mean square of errors (n, m), with the noise's variance taken off."""
    square = error**2 if noise is None else error**2 - noise**2
    return float(np.sqrt(max(np.average(square.mean(axis=1), weights=weight), 0.0)))
