"""Compare the trials of a fitted search: on new rows, and in a table."""

from __future__ import annotations

import numpy as np
import pandas as pd

from skuq.catalog._catalog import with_decisions
from skuq.search import CandidatePredictions
from skuq.tables import read_validation_rows
from skuq.tables._splits import standardise_rows
from skuq.training import predict_members


def predict_candidates(estimator, trials, X, y, sample_weight):
    """Predict new rows with every completed trial.

    `trials` are the networks of each, whose mixture predicts.
    """
    inputs, targets = estimator.inputs_, estimator.targets_
    data = (X, y) if sample_weight is None else (X, y, sample_weight)
    rows = read_validation_rows(estimator, inputs, targets, data, "X, y")
    x, y, weight = standardise_rows(rows, inputs, targets)
    raws = [predict_members(networks, x, cache=False) for networks in trials]
    raws = [raw[0] if len(raw) == 1 else targets.head.pooled(raw) for raw in raws]
    centers = None
    if hasattr(targets.head, "distribution"):
        loc, _ = targets.head.distribution(np.stack(raws).astype("float64"))
        centers = list(loc)
    return CandidatePredictions(raws, y, weight, np.arange(len(x)), centers)


def score_trials(estimator, trials, X, y, sample_weight):
    """Score every completed trial on new rows; `trials` are the networks of each."""
    candidates = predict_candidates(estimator, trials, X, y, sample_weight)
    head, weight = estimator.targets_.head, candidates.weight
    return [
        float(np.average(head.scores(candidates.y, raw.astype("float64")), weights=weight))
        for raw in candidates.raw
    ]


def make_leaderboard(result, selection, new_scores=None):
    """Tabulate the trials of a search from the best on; see `SearchEstimator.leaderboard`.

    `new_scores` are those of the completed trials on new rows.
    """
    catalog = result.catalog
    weights = dict(zip(selection.indices.tolist(), selection.weights.tolist()))
    new = {} if new_scores is None else dict(zip(catalog.completed.tolist(), new_scores))
    rows = []
    for k, record in enumerate(catalog):
        networks = result.networks(k) if record.completed else ()
        row = {
            "trial": record.trial_number,
            "status": record.status,
            "score": record.score,
            **({} if new_scores is None else {"new_score": new.get(k, np.nan)}),
            "weight": weights.get(k, 0.0),
            "seconds": record.seconds,
            "share": record.share,
            "n_networks": len(networks),
            "n_weights": sum(np.nan if n.weights is None else n.n_weights for n in networks),
            "message": record.message,
        }
        rows.append(with_decisions(row, record.configuration))
    frame = pd.DataFrame(rows)
    messages = frame.pop("message")
    if messages.any():
        frame["message"] = messages  # the last column
    # Completed trials first, then the discarded ones.
    rank = frame["status"].map({"completed": 0, "discarded": 1, "failed": 2})
    score = frame["score" if new_scores is None else "new_score"]
    return frame.iloc[np.lexsort((frame["score"], score, rank))].reset_index(drop=True)
