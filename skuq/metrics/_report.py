"""One report of predictions and of their uncertainty, on rows that a model has not seen.

Notation: n rows, m outputs, C classes. Each score is first a number for each row, (n,).
"""

import html
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from skuq import _params
from skuq._formulas import TINIEST
from skuq._params import CoverageError, NoUncertaintyError
from skuq.metrics import _scorers, _scores
from skuq.metrics._scorers import Predicted

# Coverages of the curve, and those that stand in the table.
_CURVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_LEVELS = (0.5, 0.8, 0.9, 0.95)
# Half width of a 95 % confidence interval in standard errors.
_Z = special.ndtri(0.975)
# Rows of each bin of the reliability curve, at least, and the number of bins, at most.
_BIN_ROWS, _BINS = 20, 10
_ROUNDING = 1e-9  # of sums of probabilities
_NO_LOSSES = ("mean_width_90", "set_size_90")


def uncertainty_report(model, X_test, y_test, groups=None, *, y_train=None):
    """Judge a fitted model's predictions, and the uncertainty that it claims, on test rows.

    Parameters
    ----------
    model : fitted regressor or classifier
        A regressor is judged by what it offers: `predict_distribution(X)`, ``predict(X,
        return_std=True)``, ``predict_interval(X, coverage=..)`` (also that of MAPIE's regressors,
        for the levels they were made with) or a plain `predict`. A classifier needs
        `predict_proba`. Pipelines and searches are judged by the estimator inside.
    X_test : array-like of shape (n_samples, n_features)
        Rows on which nothing was fitted, chosen or calibrated.
    y_test : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Their targets; of regressors of functions also (n_samples, n_points, n_components).
    groups : array-like of shape (n_samples,), optional
        Group of each row, such as a region. The report names the worst. No label is "missing".
    y_train : array-like of shape (n_train,) or (n_train, n_outputs), optional
        Targets the model was fitted to. The reference predicts their distribution for every row;
        by default it predicts the distribution of `y_test` itself, which is a harder rival.

    Returns
    -------
    UncertaintyReport
        It shows itself as a table, in notebooks with the calibration curve, and has

        - `frame`, a DataFrame with a row for each score: its `value`, `standard_error`, `low` and
          `high` (95 % confidence interval), `reference`, `verdict` and, of a coverage, what was
          `claimed`; with `groups` also `worst_group`, `worst`, `worst_low` and `worst_high`;
        - `curve`, a DataFrame of `claimed` and observed shares, with `low` and `high`;
        - `notes`, texts that say what was judged, what cannot be and what the reference is;
        - `sentence`, one for a paper.

    Raises
    ------
    ValueError
        If numbers of rows or outputs differ, or values are missing.
    TypeError
        If a classifier has no `predict_proba` or `classes_`.

    See Also
    --------
    make_scorers : The same scores for `cross_validate`.

    Notes
    -----
    Standard errors and intervals take rows as independent. Those of shares are Wilson's. A score
    is "better" or "worse" than the reference if the mean paired difference is more than 1.96 of its
    standard errors away from 0; a coverage is "too low" or "too high" if what was claimed is
    outside its interval. About one in twenty verdicts is due to chance. With several outputs a row
    has the mean of its outputs, and the RMSE is the root of the mean squared error of all.

    A classifier's coverage is that of the smallest sets of classes whose probabilities sum to at
    least 50, 80, 90 or 95 %; it claims the mean of these sums. The curve of a classifier is that of
    accuracy against confidence, in bins of equally many rows. The worst group is the one whose
    confidence interval ends farthest on the wrong side, so that a few unlucky rows are not it: a
    group needs two rows, and is taken to spread at least as all rows do.

    A standard deviation of 0 predicts a point: its CRPS is the absolute error, its NLL infinite.

    References
    ----------
    Gneiting and Raftery (2007), "Strictly Proper Scoring Rules, Prediction, and Estimation".
    Wilson (1927), "Probable inference, the law of succession, and statistical inference".

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skuq.metrics import uncertainty_report
    >>> X, y = load_diabetes(return_X_y=True)
    >>> report = uncertainty_report(BayesianRidge().fit(X[:300], y[:300]), X[300:], y[300:])
    >>> report.frame.loc["coverage_90", ["value", "low", "high"]].astype(float).round(2).tolist()
    [0.91, 0.85, 0.95]
    """
    judged = _judge(model, X_test, y_test)
    reference = judged.reference(judged.y if y_train is None else y_train)
    of, rows = "training" if y_train is not None else "test rows' own", []
    notes = (*judged.notes, f"The reference predicts the {of} distribution of y for every row.")
    if np.isinf(judged.losses.get("nll", 0)).any():
        notes += ("The NLL is infinite where y has no density, as with a standard deviation of 0.",)
    if groups is not None:
        groups, n = np.asarray(_params.fill_masked(groups)), len(y_test)
        if groups.shape not in ((n,), (n, 1)):
            raise ValueError(f"`groups` must have {n} labels, one a row. Got shape {groups.shape}.")
        groups = pd.Series(groups.ravel()[judged.rows], dtype=object)
        codes, labels = pd.factorize(groups.where(groups.notna(), "missing"))
        indices = pd.Series(codes).groupby(codes).indices
        groups = {labels[code]: of for code, of in indices.items() if len(of) > 1}
        if alone := len(labels) - len(groups):
            notes += (f"Groups of one row, of which there are {alone}, cannot be the worst group.",)
    for name in sorted(judged.losses, key=lambda name: name.startswith("coverage")):
        losses = judged.losses[name]
        claimed, other = judged.claimed.get(name, np.nan), reference.losses.get(name)
        row = {"score": name, **_summary(name, losses, claimed), "claimed": claimed}
        row["reference"] = np.nan if other is None else _value(name, other)
        row["verdict"] = _verdict(name, row, losses, other)
        if groups is not None and name not in _NO_LOSSES:
            row |= _worst(name, losses, groups, claimed)
        rows.append(row)
    frame = pd.DataFrame(rows).set_index("score")
    name = type(_params.unwrap_estimator(model)[0]).__name__
    return UncertaintyReport(frame, judged.curve, notes, _sentence(name, frame, len(judged.y), of))


@dataclass(frozen=True, repr=False)
class UncertaintyReport:
    """Scores, calibration curve, notes and a sentence: what `uncertainty_report` returns."""

    frame: pd.DataFrame
    curve: pd.DataFrame
    notes: tuple
    sentence: str

    def __repr__(self):
        table = self.frame.to_string(float_format="{:.4g}".format, na_rep="")
        return "\n".join([table, *self.notes, self.sentence])

    def _repr_html_(self):
        table = self.frame.to_html(float_format="{:.4g}".format, na_rep="", border=0)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in (*self.notes, self.sentence))
        return f"<div>{table}{_picture(self.curve)}{notes}</div>"


def make_scorers(*names):
    """Get scorers for ``cross_validate(.., scoring=..)`` and searches.

    Parameters
    ----------
    *names : str
        Names accepted by `get_scorer`. Without names, all scores of `uncertainty_report`.

    Returns
    -------
    dict of {str: callable}, or callable
        The scorers by name. Without names one scorer, which predicts once and returns a dict of the
        report's scores that the estimator offers: losses have the prefix ``neg_``, coverages not.

    Raises
    ------
    ValueError
        If a name is unknown.

    Examples
    --------
    >>> make_scorers("neg_nll", "r2")
    {'neg_nll': get_scorer('neg_nll'), 'r2': make_scorer(r2_score, response_method='predict')}
    """
    return {name: _scorers.get_scorer(name) for name in names} if names else report_scores


def report_scores(estimator, X, y):
    """Compute the scores of `uncertainty_report`; larger is better, apart from coverages."""
    values = {name: _value(name, rows) for name, rows in _judge(estimator, X, y).losses.items()}
    return dict((n, v) if n.startswith("coverage") else (f"neg_{n}", -v) for n, v in values.items())


@dataclass(frozen=True)
class _Judged:
    """Scores of each row by name, coverages that were claimed, the calibration curve and notes.

    `y` are the targets of the `rows` that were judged: a classifier does not know the classes of
    others. `reference` judges the distribution of given targets as the prediction of every row.
    """

    losses: dict
    claimed: dict
    curve: pd.DataFrame
    notes: tuple = ()
    y: Any = None
    rows: Any = ...
    reference: Callable | None = None


def _judge(model, X, y) -> _Judged:
    """Predict, and score each row by whatever the model offers."""
    model, X = _params.unwrap_estimator(model, X)
    labels = any(isinstance(label, str | bytes | bool) for label in np.ravel(y).tolist())
    # MAPIE's classifiers predict sets, and have no classes.
    if not (labels or _params.classifies(model) or hasattr(model, "predict_set")):
        return _judge_numbers(model, X, y)
    y, proba, known = _scorers.known_labels(model, X, y)
    codes = _scores.label_columns(y, _scores.check_proba(proba), model.classes_)

    def reference(labels):
        of = _params.class_codes(labels, np.asarray(model.classes_))
        shares = np.bincount(of, minlength=proba.shape[1]) / len(of)
        return _judge_classes(np.tile(shares, (len(codes), 1)), codes)

    judged = _judge_classes(proba, codes)
    # A threshold may decide, not the most probable class.
    if hasattr(model, "predict") and np.size(said := model.predict(X)) == len(known):
        judged.losses["error_rate"] = 1.0 * (np.ravel(said)[known] != np.ravel(y))
    return replace(judged, y=y, rows=known, reference=reference)


def _judge_numbers(model, X, y) -> _Judged:
    point = np.asarray(model.predict(X), dtype=float)
    y = _scores.targets_like(point, y)
    predicted = Predicted(model, X, y)
    losses, claimed, curve, missing = {"rmse": (y - point) ** 2}, {}, [], []
    for name, score in (("crps", _scorers.crps), ("nll", _scorers.nll)):
        try:
            losses[name] = score(predicted)
        except NoUncertaintyError:
            missing.append(name.upper())
    own = _scorers.levels_of_mapie(model)
    for level in _CURVE if own is None else np.unique([*_LEVELS, *own.round(9)]):
        try:
            ends = predicted.interval(level)
        except (NoUncertaintyError, CoverageError):
            missing += [f"coverage of {level:.0%}"] if level in _LEVELS else []
            continue
        low, high = (_params.reshape_like_prediction(end, y) for end in ends)
        if level == 0.9:
            losses["interval_90"] = _scores.winkler(y, low, high, level)
            losses["mean_width_90"] = high - low
        held = _scores.inside(y, low, high)
        curve.append((level, held.mean(), len(held)))
        if level in _LEVELS or own is not None:
            name = f"coverage_{100 * level:g}"
            losses[name], claimed[name] = held, level
    notes = ["Not judged, because the model does not offer it: " + ", ".join(missing) + "."]
    if not curve:
        notes.append("CalibratedUncertaintyRegressor gives a fitted regressor a distribution.")
    return _Judged(
        losses={k: np.reshape(rows, (len(y), -1)).mean(axis=1) for k, rows in losses.items()},
        claimed=claimed,
        curve=_curve(curve),
        notes=tuple(notes) if missing else (),
        y=y,
        reference=lambda targets: _judge_numbers(_Marginal(targets, y), X, y),
    )


def _judge_classes(proba, codes) -> _Judged:
    true, right = proba[np.arange(len(codes)), codes], proba.argmax(axis=1) == codes
    losses = {
        "error_rate": 1.0 - right,
        "nll": -np.log(np.maximum(true, _scores.LEAST_PROBABILITY)),
        "brier": _scores.brier(proba, codes),
    }
    # Classes by falling probability, and the probability of all that stand before each of them.
    order = np.argsort(-proba, axis=1, kind="stable")
    ranked = np.take_along_axis(proba, order, axis=1)
    before, claimed = ranked.cumsum(axis=1) - ranked, {}
    for level in _LEVELS:
        chosen = before < level - _ROUNDING  # the smallest set with this probability
        if level == 0.9:
            losses["set_size_90"] = chosen.sum(axis=1)
        name = f"coverage_{100 * level:g}"
        losses[name] = (chosen & (order == codes[:, None])).any(axis=1)
        claimed[name] = min((ranked * chosen).sum(axis=1).mean(), 1.0)
    n_bins = int(np.clip(len(codes) // _BIN_ROWS, 1, _BINS))
    bins = np.array_split(np.argsort(ranked[:, 0], kind="stable"), n_bins)
    curve = [(ranked[of, 0].mean(), right[of].mean(), len(of)) for of in bins]
    return _Judged(losses, claimed, _curve(curve))


class _Marginal:
    """Regressor that predicts the distribution of some targets for every row."""

    def __init__(self, targets, like):
        targets = _params.as_floats(targets, "y_train")
        if (given := targets[:1].size) != (expected := like[:1].size):
            raise ValueError(f"`y_train` must have {expected} outputs, as `y_test`. Got {given}.")
        self.targets = targets.reshape(-1, *like.shape[1:])

    def predict(self, X, return_std=False):
        mean, std = (self._repeat(of(self.targets, axis=0), X) for of in (np.mean, np.std))
        return (mean, std) if return_std else mean

    def predict_interval(self, X, coverage):
        ends = self.quantile([(1 - coverage) / 2, (1 + coverage) / 2])[0]
        return tuple(self._repeat(end, X) for end in ends)

    def predict_distribution(self, X):
        return self

    def quantile(self, levels):
        return np.quantile(self.targets, levels, axis=0)[None]

    def _repeat(self, part, X):
        return np.broadcast_to(part, (_params.num_samples(X), *np.shape(part)))


def _curve(points) -> pd.DataFrame:
    """Put claimed and observed shares, and confidence intervals, into a frame."""
    rows = [(claimed, share, *_wilson(share, n)) for claimed, share, n in points]
    return pd.DataFrame(rows, columns=["claimed", "observed", "low", "high"])


def _wilson(share, n):
    """Compute Wilson's 95 % confidence interval of a share of n rows."""
    centre, shrink = share + _Z**2 / (2 * n), 1 + _Z**2 / n
    half = _Z * np.sqrt(share * (1 - share) / n + (_Z / (2 * n)) ** 2)
    low, high = (centre - half) / shrink, (centre + half) / shrink
    return low if share > 0 else 0.0, high if share < 1 else 1.0  # without rounding


def _value(name, rows) -> float:
    return float(np.sqrt(rows.mean()) if name == "rmse" else rows.mean())


def _standard_error(rows, spread=0.0) -> float:
    if len(rows) < 2 or not np.isfinite(rows).all():
        return np.nan if len(rows) < 2 else 0.0  # an infinite mean is certain
    return max(rows.std(ddof=1), spread) / len(rows) ** 0.5


def _summary(name, rows, claimed, spread=0.0) -> dict:
    value, error = _value(name, rows), float(_standard_error(rows, spread))
    if name == "rmse":  # the delta method
        error /= max(2 * value, TINIEST)
    ends = (value - _Z * error, value + _Z * error)
    if name == "error_rate" or not np.isnan(claimed):
        ends = _wilson(value, len(rows))
    return {"value": value, "standard_error": error, "low": ends[0], "high": ends[1]}


@np.errstate(invalid="ignore")  # infinite losses on both sides
def _verdict(name, row, rows, other) -> str:
    """Compare a coverage with what was claimed, and a loss, row by row, with the reference."""
    if not np.isnan(claimed := row["claimed"]):
        too_high = "too high" if row["low"] > claimed else "as claimed"
        return "too low" if row["high"] < claimed else too_high
    if other is None or name in _NO_LOSSES:
        return ""
    gain, error = other.mean() - rows.mean(), _Z * _standard_error(other - rows)
    return "better" if gain > error else "worse" if gain < -error else "no clear difference"


def _worst(name, rows, groups, claimed) -> dict:
    """Find the group whose confidence interval ends farthest on the wrong side."""
    # Few rows that agree by chance say little: each group spreads at least as all rows.
    spread = _standard_error(rows) * len(rows) ** 0.5
    found = [{"group": g, **_summary(name, rows[of], claimed, spread)} for g, of in groups.items()]
    worst = max(found, key=lambda s: s["low"] if np.isnan(claimed) else -s["high"], default={})
    parts = {"worst_group": "group", "worst": "value", "worst_low": "low", "worst_high": "high"}
    return {column: worst.get(part, np.nan) for column, part in parts.items()}


def _sentence(name, frame, n, of) -> str:
    """Say the most important of the scores, with their errors, as a paper would."""
    text = f"On {n} test rows, "
    if "coverage_90" in frame.index:
        row, kind = frame.loc["coverage_90"], "90% prediction intervals"
        if "set_size_90" in frame.index:
            kind = f"smallest sets of classes with 90% ({row.claimed:.1%} on average)"
        text += f"the {kind} of {name} held {row.value:.1%} of the targets (95% confidence "
        text += f"interval {row.low:.1%} to {row.high:.1%}); "
    row = frame.loc[next(score for score in ("crps", "nll", "rmse") if score in frame.index)]
    text += f"the {row.name.upper()} was {row.value:.4g} (standard error {row.standard_error:.2g})"
    return text + f", against {row.reference:.4g} of a prediction of the {of} distribution."


def _picture(curve) -> str:
    """Draw the calibration curve, with confidence intervals, as SVG."""
    if not len(curve):
        return ""
    across, up = 40 + 240 * curve["claimed"], 250 - 240 * curve[["observed", "low", "high"]]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up["observed"]))
    bars = "".join(f"M{x:.1f} {a:.1f}V{b:.1f}" for x, a, b in zip(across, up["low"], up["high"]))
    labels = [(40 + 240 * t, 267.0, f"{t:g}") for t in (0, 0.5, 1)]
    labels += [(28.0, 254 - 240 * t, f"{t:g}") for t in (0, 0.5, 1)]
    texts = "".join(f'<text x="{x:g}" y="{y:g}">{text}</text>' for x, y, text in labels)
    return f"""<svg width="300" height="295" font-size="11" text-anchor="middle"
fill="currentColor">
<g fill="none" stroke="currentColor"><path d="M40 10H280V250H40Z"/>
<path stroke-dasharray="3" d="M40 250L280 10"/></g><g fill="none" stroke="#0072B2" stroke-width="2">
<polyline points="{line}"/><path d="{bars}"/></g>{texts}<text x="160" y="285">claimed share</text>
<text transform="translate(14 130) rotate(-90)">observed share</text></svg>"""
