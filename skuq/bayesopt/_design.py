"""Points that are proposed before there are results enough for a surrogate."""

from __future__ import annotations

import numpy as np

from skuq._seeds import generator
from skuq.bayesopt._domain import SMALL_DOMAIN
from skuq.bayesopt._results import ResultLog


def initial_points(q: int, log: ResultLog, n_initial: int, entropy: int) -> np.ndarray:
    """Propose q points: the rest of a Latin hypercube of `n_initial`, then uniform ones.

    Known and pending points count as points of the design. None of them is proposed again, unless
    a noisy function is asked for more than its domain has.
    """
    n, domain = len(log) + len(log.pending), log.domain
    design = domain.design(n_initial, generator(entropy, "initial"))
    rng = generator(entropy, "uniform", n)
    # More uniform points than asked for, since some may be taken.
    points = [design[n:], domain.sample(2 * q, rng)]
    # The whole of a small domain in random order, so that no free point is missed.
    if domain.n_points <= SMALL_DOMAIN:
        points.append(rng.permutation(domain.grid()))
    taken, chosen = log.taken, []
    for x in np.concatenate(points).tolist():
        if tuple(x) not in taken:
            taken.add(tuple(x))
            chosen.append(x)
    rest = domain.sample(max(0, q - len(chosen)), rng)
    return np.vstack([np.array(chosen[:q]).reshape(-1, domain.n_columns), rest])
