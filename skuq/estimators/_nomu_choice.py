"""Choice of NOMU's readout: c, l_min, l_max and the noise's factor, by held-out likelihood."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral

import numpy as np

from skuq._warnings import warn_user
from skuq.exceptions import SmallValidationWarning
from skuq.fitted._nomu import Readout, both_sides
from skuq.networks._nomu import READOUTS
from skuq.predictive._calibration import fit_epistemic_scale, fit_readout

# Candidates of the paper's UCI study, in units of the standardised y.
_L_MINS = np.geomspace(0.005, 0.8, 100)
_L_MAXS = np.geomspace(0.8, 10.0, 80)
_FEW_ROWS = 30


def is_to_choose(model) -> bool:
    """Whether any parameter of the readout is to be chosen."""
    return "nll" in (model.c, model.l_min, model.l_max)


def check_parameters(model) -> None:
    """Raise ValueError where parameters of a NOMURegressor contradict each other."""
    _check_readout(model)
    if isinstance(model.cv, Integral) and not model.refit:
        raise ValueError("`cv` trains on parts of the rows only: it needs refit=True.")
    trains_mean = is_to_choose(model) and model.pretrained is None
    if model.early_stopping is True and model.connect_gradient and trains_mean:
        raise ValueError(
            "`early_stopping` trains f before r, and connect_gradient=True needs them to "
            "train together: give up one of them."
        )
    if model.pretrained is not None and (model.noise == "learned" or model.build_f is not None):
        raise ValueError(
            "`pretrained` gives the prediction: it excludes noise='learned' and `build_f`."
        )


def _check_readout(model):
    l_min, l_max = model.l_min, model.l_max
    if "nll" in (l_min, l_max) and model.c != "nll":
        raise ValueError(
            f"`l_min` and `l_max` are chosen together with c: with c={model.c!r} give numbers, "
            f"for example l_min=0.001 and l_max=2. Got {l_min!r} and {l_max!r}."
        )
    lowest = _L_MINS[0] if l_min == "nll" else l_min
    highest = _L_MAXS[-1] if l_max == "nll" else l_max
    if highest <= lowest:
        raise ValueError(
            f"`l_max` must be larger than `l_min`. Got l_min={l_min}, l_max={l_max}, "
            f'where "nll" tries l_min from {_L_MINS[0]:g} and l_max up to {_L_MAXS[-1]:g}.'
        )
    if l_min == 0 and model.c == "nll":
        raise ValueError(
            "With `l_min` at 0 some rows would have no width at all, and c no value. Give a "
            'small number, or l_min="nll"; or a number for `c`.'
        )


def choose_readout(model, held_out, inputs, targets) -> Readout:
    """Choose what the parameters of the readout leave open.

    `held_out` holds pairs of a NomuNetwork and Rows that it was not trained on; they are ignored if
    nothing is to be chosen.
    """
    if not is_to_choose(model):
        return Readout(model.readout, model.bounds, model.l_min, model.l_max, model.c)
    n_rows = sum(len(rows.X) for _, rows in held_out)
    if n_rows < _FEW_ROWS:
        warn_user(
            f"c, l_min and l_max are chosen on {n_rows} rows held out, by chance more than by "
            "knowledge. For data without noise give numbers, for example l_min=0.001, "
            "l_max=2 and c=1.",
            SmallValidationWarning,
        )
    parts = [_errors(network, rows, inputs, targets) for network, rows in held_out]
    errors, raws, noises, weights = zip(*parts)
    error, raw, weight = (np.concatenate(part) for part in (errors, raws, weights))
    noise = None if noises[0] is None else np.concatenate(noises)
    # The likelihood depends on the widths on both sides, and on the side where y lies.
    up, down = both_sides(raw, model.bounds)
    near, far = np.where(error > 0, up, down), np.where(error > 0, down, up)
    l_min, l_max = model.l_min, model.l_max
    if "nll" in (l_min, l_max):
        l_min, l_max, _ = fit_readout(
            error,
            near,
            READOUTS[model.readout],
            weight,
            _L_MINS if l_min == "nll" else np.array([l_min]),
            _L_MAXS if l_max == "nll" else np.array([l_max]),
            aleatoric=noise,
            raw_beyond=far,
        )
    readout = Readout(model.readout, model.bounds, l_min, l_max)
    c, noise_factor = fit_epistemic_scale(
        error,
        readout.std(near),
        noise,
        weight,
        fit_noise=model.noise == "learned",
        beyond=readout.std(far),
    )
    return replace(readout, c=c, noise_factor=noise_factor)


def _errors(network, rows, inputs, targets):
    """Errors, raw uncertainty and noise of rows, standardised, and their weights."""
    mean, raw, noise = network.predict(rows.X, inputs, targets)
    unit = targets.scaling.scale_
    return (rows.y - mean) / unit, raw, None if noise is None else noise / unit, rows.weight
