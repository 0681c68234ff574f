"""Stored runs of the optimisation of an interferometer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np


class InterferometerRuns(NamedTuple):
    """Five runs of Bayesian optimisation with an RPN ensemble.

    Attributes
    ----------
    inputs : ndarray of shape (5, 15, 4)
        Positions of the mirrors of the initial designs, in [-1, 1].
    outputs : ndarray of shape (5, 15, 4096, 16)
        Their images in 0 to 255, float32: queries and components as in
        ``make_operator_problem("interferometer")``.
    all_inputs : ndarray of shape (5, 100, 4)
        All that was asked for; the first 15 are the initial design.
    best_values : ndarray of shape (5, 86)
        The best visibility so far, from the initial design on.
    """

    inputs: np.ndarray
    outputs: np.ndarray
    all_inputs: np.ndarray
    best_values: np.ndarray


def load_interferometer(path):
    """Functions and results of the problem "interferometer".

    Parameters
    ----------
    path : str or path-like
        The file `interferometer_rpnbo.npz`, with arrays `u_init`, `s_init`, `u_all` and
        `best_so_far`.

    Returns
    -------
    runs : InterferometerRuns

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it has not the arrays above in their shapes.

    See Also
    --------
    make_operator_problem : The problem's bounds, query points and objective.

    References
    ----------
    The optimisation: Bhouri, Joly, Yu, Sarkar and Perdikaris, "Scalable Bayesian optimization
    with randomized prior networks", 2023. The simulator: Sorokin et al., "Interferobot", 2021.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be the interferometer's file. There is none: {path}.")
    with np.load(path) as stored:
        shapes = {name: stored[name].shape for name in stored.files}
        wrong = [name for name, shape in _SHAPES.items() if shapes.get(name) != shape]
        if wrong:
            raise ValueError(
                f"{path} must have arrays of the shapes {_SHAPES}. Got {wrong[0]!r} of shape "
                f"{shapes.get(wrong[0])}."
            )
        images = stored["s_init"].astype("float32")
        return InterferometerRuns(
            stored["u_init"].astype("float64"),
            np.moveaxis(images, 2, -1).reshape(5, 15, -1, 16),
            stored["u_all"].astype("float64"),
            -stored["best_so_far"].astype("float64"),  # stored as what is to be minimised
        )


_SHAPES = {
    "u_init": (5, 15, 4),
    "s_init": (5, 15, 16, 64, 64),
    "u_all": (5, 100, 4),
    "best_so_far": (5, 86),
}
