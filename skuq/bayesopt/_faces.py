"""Move proposals off faces of the box, so that results show the slope away from them.

Maximisers end on faces often, because a surrogate extrapolates the trend of distant results to
them. Results that all lie on a face say nothing of the slope away from it: the surrogate goes on
with the trend, however wrong, and a search converges on the face. Model-based optimisation
without derivatives therefore evaluates points that improve the geometry of its data.

References
----------
A. R. Conn, K. Scheinberg, L. N. Vicente. "Introduction to Derivative-Free Optimization", 2009,
chapters 3 and 6 (poisedness, geometry-improving steps).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial.distance import cdist

from skuq.bayesopt._domain import Domain

_NEAR = 0.1  # distance of near points in unit coordinates, in units of sqrt(D)
_N_NEAR = 3  # number of near results at which a search counts as converging there
_MOVE = 0.02  # length of a move, as a share of the side
# Share of the side within which a proposal is on a face. DIRECT stops this near to it in up to
# about six dimensions.
_ON_FACE = 1e-3


def moves_off_faces(
    domain: Domain, batch: np.ndarray, results: np.ndarray, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find moves of proposals off faces on which all points near them lie.

    Parameters
    ----------
    batch : ndarray of shape (q, d)
        Proposals.
    results : ndarray of shape (n, d)
        Points with results. Proposals with few of them near are left where they are.
    others : ndarray of shape (k, d)
        Further points, whose results are expected or have failed: they count as near, too, so that
        no move is made twice.

    Returns
    -------
    rows : ndarray of int of shape (m,)
        Number of the proposal that each move is for.
    moved : ndarray of shape (m, d)
        The proposal moved inwards along one continuous column.
    """
    rows, moved = [], []
    near = _NEAR * math.sqrt(len(domain.encoded_bounds))
    points = np.vstack([results, others, batch])
    is_near = cdist(domain.unit(batch), domain.unit(points)) <= near
    for row, x in enumerate(batch):
        if is_near[row, : len(results)].sum() < _N_NEAR:
            continue
        for column in np.flatnonzero(domain.is_continuous):
            low, high = domain.bounds[column]
            face, inwards = (low, high - low) if 2 * x[column] < low + high else (high, low - high)
            shares = (points[is_near[row], column] - face) / inwards
            if (x[column] - face) / inwards > _ON_FACE or shares.max() > _MOVE / 2:
                continue
            inside = x.copy()
            inside[column] = face + _MOVE * inwards
            rows.append(row)
            moved.append(inside)
    return np.array(rows, dtype=int), np.array(moved).reshape(-1, domain.n_columns)
