"""Rows that NOMU holds out, to choose its readout by."""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import GroupKFold, KFold

from skuq._utils._environment import generator
from skuq.estimators._nomu_choice import chooses_readout
from skuq.tables import make_splits

_MIN_ROWS_FOR_EQUAL_FOLDS = 100  # with fewer rows, none is left out to make folds equal
_FOLDS_BELOW_ROWS = ((30, 10), (500, 5))  # with cv="auto": (number of rows, folds below it)
_N_GAPS = 5  # with cv="gaps": folds of each of the two kinds


def training_parts(model, rows, entropy, validation, groups):
    """List the rows of each network to train: positions to train on, and held-out ones or None.

    With held-out rows, the readout can be chosen on them. There is one network for all rows if
    nothing is chosen or validation rows are given. Otherwise there is one for a single split or,
    by `cv`, one for each fold; "gaps" adds folds that hold out the middle of a feature's range.
    """
    everywhere = np.arange(len(rows.X))
    if not chooses_readout(model) or validation is not None:
        return [(everywhere, None)]
    if model.pretrained is not None:
        raise ValueError(
            "`pretrained` has seen the rows it is given, and its errors there say little of "
            "others: give `validation_data`, or numbers for `c`, `l_min` and `l_max`."
        )
    n_folds = model.cv
    if n_folds == "auto":
        units = len(rows.X) if groups is None else len(np.unique(groups))
        most = next((n for below, n in _FOLDS_BELOW_ROWS if len(rows.X) < below), None)
        # Folds need a refit on all rows. With many rows a single split is enough.
        n_folds = min(most, units) if most and model.refit and units > 1 else None
    if n_folds == "gaps":
        if groups is not None:
            raise ValueError('`groups` cannot be kept together with cv="gaps". Drop one of them.')
        folds = KFold(min(_N_GAPS, len(rows.X)), shuffle=True, random_state=_seed(entropy))
        return [*folds.split(rows.X), *_gap_parts(rows.X, generator(entropy, "gaps"))]
    if n_folds is None:
        splits = make_splits(rows, entropy, fraction=model.validation_fraction, groups=groups)
        return [(np.setdiff1d(everywhere, splits.positions), splits.positions)]
    kind = KFold if groups is None else GroupKFold
    folds = kind(n_folds, shuffle=True, random_state=_seed(entropy))
    parts = make_splits(rows, entropy, cv=folds, groups=groups).parts
    if groups is None and len(rows.X) >= _MIN_ROWS_FOR_EQUAL_FOLDS:
        # Equal folds train in one program: leave out the few rows by which they differ.
        sizes = [min(map(len, part)) for part in zip(*parts)]
        parts = [tuple(part[:n] for part, n in zip(pair, sizes)) for pair in parts]
    return parts


def _seed(entropy) -> int:
    return int(generator(entropy, "split").integers(2**31))


def _gap_parts(X, rng):
    """List folds that hold out the middle third of the rows along features drawn at random.

    The UCI gap splits are made in this way (Foong et al. 2019). Constant features have no middle.
    """
    third = len(X) // 3
    if not third:
        raise ValueError(f'cv="gaps" holds out thirds of the rows. Got n_samples={len(X)}.')
    features = np.flatnonzero(np.ptp(X, axis=0) > 0)
    parts = []
    for feature in rng.permutation(features)[:_N_GAPS]:
        order = np.argsort(X[:, feature], kind="stable")
        outside = np.concatenate([order[:third], order[-third:]])
        parts.append((np.sort(outside), np.sort(order[third:-third])))
    return parts
