"""Scores of teams of models: diversity over all rows, and likelihood."""

import numpy as np

from skuq.ensembles import _pruning, _selection, _teams

SELECTORS, select_by = ("forward", "replacement", "quick", "top"), _selection.select_by
likelihood_statistics, select_hq = _selection.likelihood_statistics, _pruning.select_hq


def diversity_score(right, *, measure):
    """The Q measure of the team of all models, from hits."""
    n_models, n_samples = right.shape
    counts = _teams.count_pairs(~right, [np.arange(n_samples)], np.ones(n_samples))
    return float(counts.scores(measure, np.arange(n_models)[None], 0)[0])
