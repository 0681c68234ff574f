"""Scores of teams of models: diversity over all rows, and likelihood."""

import numpy as np

from skuq.ensembles import _pruning as _hq
from skuq.ensembles import _selection as _likelihood
from skuq.ensembles import _teams

SELECTORS, select_by = ("forward", "replacement", "quick", "top"), _likelihood.select_by
likelihood_statistics = _likelihood.likelihood_statistics
select_hq = _hq.select_hq


def diversity_score(right, *, measure="gd", teams=None, sample_weight=None):
    """The Q measure of `teams`, by default of the one of all models, from hits."""
    wrong = ~np.asarray(right)
    n_models, n_samples = wrong.shape
    weight = _teams.row_weights(sample_weight, n_samples)
    counts = _teams.count_pairs(wrong, [np.arange(n_samples)], weight)
    members = [range(n_models)] if teams is None else teams
    scores = [counts.scores(measure, np.sort([list(team)]), 0)[0] for team in members]
    return float(scores[0]) if teams is None else np.array(scores)
