"""Diversity scores of teams over all rows."""

import numpy as np

from skuq.ensembles._teams import count_pairs, row_weights

__all__ = ["diversity_score"]


def diversity_score(
    given, y=None, *, measure="gd", teams=None, on="correctness", sample_weight=None
):
    """The Q measure of `teams`, by default of the one of all models.

    `given` (n_models, n_samples) are booleans that tell whether a model is right, or labels if
    there is `y`. With ``on="labels"`` the labels are compared.
    """
    given, labels = np.asarray(given), None
    wrong = ~given if y is None and on == "correctness" else given != y
    if on == "labels":
        labels = np.unique(given, return_inverse=True)[1].reshape(given.shape)
    n_models, n_samples = given.shape
    weight = row_weights(sample_weight, n_samples)
    counts = count_pairs(wrong, [np.arange(n_samples)], weight, labels)
    members = [range(n_models)] if teams is None else teams
    scores = [counts.scores(measure, np.sort([list(team)]), 0)[0] for team in members]
    return float(scores[0]) if teams is None else np.array(scores)
