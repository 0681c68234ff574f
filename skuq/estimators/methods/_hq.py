"""HQ: select a small, diverse and accurate team from a pool of classifiers."""

from dataclasses import field, fields
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import TransformerMixin, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Bunch
from sklearn.utils.parallel import Parallel, delayed

from skuq._params import BaseComposition, StrOptions, check_labels, class_codes, parameters
from skuq.ensembles._pruning import CONSTRAINTS, Rules, prune_classifiers
from skuq.ensembles._teams import break_ties
from skuq.estimators._base import Fit, Given, UncertaintyClassifier
from skuq.estimators.methods import _out_of_fold
from skuq.fitted._ensemble import FittedTeam, predict_votes


@parameters("estimators.HQEnsembleSelector", kind="estimator")
class HQEnsembleSelector(UncertaintyClassifier, TransformerMixin, BaseComposition):
    """Select a small, diverse and accurate team from a pool of classifiers.

    Every team of two or more members of the pool is a candidate. Its HQ score measures how often
    its members err on the same rows, averaged over the members as focal models; low scores mean
    diverse teams. The alpha filter starts from pairs, prunes the least diverse teams of each
    size, and never scores a team that contains a pruned one. The K-means filter then separates
    the diverse and accurate teams of each size from the rest. The most accurate of the remaining
    teams predicts.

    Parameters
    ----------
    estimators : list of (str, classifier) tuples
        Pool of two or more classifiers. A `sklearn.frozen.FrozenEstimator` is not fitted again;
        "drop" leaves one out. With ``cv="prefit"`` also fitted Keras models and functions of X, see
        `CalibratedUncertaintyClassifier`. For the members of a fitted ensemble of skuq see its
        `member_estimators`.
    metric : {"ck", "ck-formula-1", "qs", "bd", "fk", "kw", "gd"} or list of these, default="gd"
        Measure of diversity: Cohen's kappa, Cohen's kappa as the paper's Formula 1 prints it, Q
        statistics, binary disagreement, Fleiss' kappa, Kohavi-Wolpert variance or generalised
        diversity. The paper singles out generalised diversity on CIFAR-10.
        The scores of several metrics are averaged (the paper uses one at a time).
    diversity : {"hq", "q"}, default="hq"
        Score of a team. "hq" is described above. "q" measures diversity once, on the rows that any
        model of the pool gets wrong; with ``filters=("mean",)`` it is the paper's baseline.
    filters : sequence of {"alpha", "kmeans", "mean"}, default=("alpha", "kmeans")
        Filters, in the order in which they apply. "alpha" decides which teams are scored and must
        come first. "mean" keeps the teams that score below the mean. A filter that would leave no
        team is skipped, and `teams_` says so. An empty sequence keeps all teams.
    beta : float, default=0.1
        Share of the teams of each size that the alpha filter prunes.
    max_team_size : int or None, default=None
        Maximum number of members of a team. None is the size of the pool, for pools of at most 25.
    empty_sizes : {"keep", "drop"}, default="keep"
        What the K-means filter does with a size of which no team scores below the weak cluster:
        "keep" skips the filter for it, "drop" drops its teams, unless none of any size were left.
    voting : {"soft", "hard", "majority"}, default="soft"
        Kind of vote. "soft" averages probabilities. "hard" takes the label with the most votes
        (plurality). "majority" takes the label with more than half of the votes; a row without one
        counts as wrong when teams are compared. As `predict` must name a class, it gives the label
        with the most votes there; ``predict_proba(X).max(axis=1) > 0.5 + 1e-6`` tells which rows
        have a majority. With "hard" and "majority" the probabilities are shares of votes, tilted by
        less than 1e-6 towards the more accurate members, so that the most accurate of the tied
        members decides a tie.
    weights : {"accuracy"} or None, default=None
        Weights of the members' votes, or of their probabilities with ``voting="soft"``. "accuracy"
        makes them proportional to `accuracies_`. None weights all members equally.
    cv : int, cross-validation generator, iterable, "prefit" or None, default=None
        Splitter for out-of-fold predictions. None is 5-fold cross-validation, stratified by
        classes, or fewer folds of few rows. "prefit" takes what is already fitted as it is; then
        pass rows to `fit` that it has not seen. Every row must be
        in exactly one test fold; afterwards the chosen members are fitted on all rows.
    choose : "accuracy" or callable, default="accuracy"
        Rule that chooses one of the remaining teams. "accuracy" takes the most accurate on these
        rows; of equally accurate teams the smaller, then the more diverse. A callable gets the
        remaining teams, a frame like `teams_`, and returns a label of its index.
    n_jobs : int or None, default=None
        Number of fits that run in parallel. One fits one estimator.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    teams_ : DataFrame
        One row per team: `team` (positions in `names_`), `size`, `q`, `hq`, `accuracy`, `alpha`
        (passed the alpha filter), `kept` (passed all) and `reason`. See
        `skuq.ensembles.TeamSelection`.
    selected_ : tuple of int
        Positions of the members of the selected team.
    support_ : ndarray of bool of shape (n_models,)
        Mask of the members of the selected team.
    names_ : list of str
        Names of the pool, without those dropped.
    accuracies_ : ndarray of shape (n_models,)
        Accuracy of each model of the pool, on the rows that teams are scored on.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1. They are the weights of the votes of the selected
        team.
    n_possible_, n_scored_ : int
        Number of possible teams, and of those that were scored.
    thresholds_ : tuple of (filter, score, size, value)
        Thresholds of the filters; size is None for all sizes.
    estimators_ : list of classifiers
        Fitted members of the selected team, in the order of `selected_`.
    named_estimators_ : Bunch
        Fitted members of the selected team, by name.
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    See Also
    --------
    skuq.ensembles.select_teams : The same from arrays of predictions.
    sklearn.ensemble.VotingClassifier : A vote of all estimators.

    Notes
    -----
    Teams are chosen on the same rows that score them, so the accuracy of the best team in
    `teams_` is optimistic. X is passed to the members unchanged, and they check it. Scoring is
    fast, as all metrics follow from one matrix of counts; most of the time goes into fitting the
    pool, then into the votes of the teams that were not pruned.

    References
    ----------
    Anonymous authors, "Deep Ensembles with Hierarchical Diversity Pruning", under review at ICLR
    2021, Algorithms 1 to 3. Later version: Y. Wu, K.-H. Chow, W. Wei, L. Liu, "Hierarchical Pruning
    of Deep Ensembles with Focal Diversity", 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from skuq import HQEnsembleSelector
    >>> X, y = load_iris(return_X_y=True)
    >>> pool = [
    ...     ("linear", LogisticRegression(max_iter=500)),
    ...     ("bayes", GaussianNB()),
    ...     ("near", KNeighborsClassifier()),
    ...     ("tree", DecisionTreeClassifier(random_state=0)),
    ... ]
    >>> model = HQEnsembleSelector(pool).fit(X, y)
    >>> [model.names_[k] for k in model.selected_]
    ['bayes', 'near', 'tree']
    >>> model.predict(X[:1])
    array([0])
    """

    estimators: Any = field(kw_only=False)
    metric: str = "gd"
    diversity: str = "hq"
    filters: Any = ("alpha", "kmeans")
    beta: float = 0.1
    max_team_size: int | None = None
    empty_sizes: str = "keep"
    voting: str = "soft"
    weights: Any = None
    cv: Any = None
    choose: str = "accuracy"
    n_jobs: int | None = None
    verbose: int | None = None

    _parameter_constraints = {
        "estimators": [list],
        **CONSTRAINTS,
        "voting": [StrOptions({"soft", "hard", "majority"})],
        "cv": ["cv_object", StrOptions({"prefit"})],
        "n_jobs": [Integral, None],
        "verbose": ["verbose", None],
    }

    _skips_nested_validation = False

    def fit(self, X, y, sample_weight=None, *, groups=None):
        """Predict with every model of the pool, choose a team, and fit its members.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Inputs, in any form that the estimators accept.
        y : array-like of shape (n,)
            Classes.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights of the rows, for fitting the members and for choosing the team. A
            pipeline hands them to its last step.
        groups : array-like of shape (n,), optional
            Groups, which are passed to `cv`: rows of one group are then never in two folds, also
            with the default of `cv`. Models of the pool that take groups get them, too. Refused
            with ``cv="prefit"``, which splits nothing.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the pool is too small, its fitted models have different classes, or there are too
            many teams.
        NotFittedError
            If ``cv="prefit"`` and a model is not fitted.

        Warns
        -----
        CalibrationWarning
            If rows are left out because their fold trains on no row of their class.
        """
        return self._fit_by(Given(X, y, sample_weight, groups=groups))

    def _fit(self, given):
        prefit = isinstance(self.cv, str)
        pool = self._check_pool(prefit)
        if prefit and given.groups is not None:
            raise ValueError("With cv='prefit' no rows are split: leave out `groups`.")
        rules = Rules(**{part.name: getattr(self, part.name) for part in fields(Rules)})
        rules = rules.check_pool(len(pool))
        y = check_labels(given.y)
        X, weight, sample_weight, features = _out_of_fold.read_foreign_rows(
            self, given.X, y, given.sample_weight
        )
        for model in pool.values():
            if isinstance(model, _out_of_fold.FittedProbabilities):
                model.find_classes(X, y)
        classes = _check_classes(pool, y, prefit)
        codes = class_codes(y, classes)
        # Rows that the models have not been fitted on compare the teams.
        fit_params, splits, tested = {}, None, np.arange(len(y))
        if not prefit:
            fit_params = {
                n: _out_of_fold.row_params(m, sample_weight, given.groups, f"{n!r} in `estimators`")
                for n, m in pool.items()
            }
            kind = "any" if all(map(_out_of_fold.learns_nothing, pool.values())) else "classes"
            splits = _out_of_fold.make_folds(
                self.cv, X, y, weight > 0, given.groups, kind, once=True
            )
            tested = np.sort(np.concatenate([test for _, test in splits]))
        ballots = "soft" if self.voting == "soft" else "hard"  # probabilities or labels
        # Fitted models predict all rows at once, others those of each test fold.
        calls = (
            delayed(_predict_held_out)(n, m, X, y, fit_params.get(n), splits, ballots, classes)
            for n, m in pool.items()
        )
        held_out = _out_of_fold.run(calls, self.n_jobs, self.verbose, "pool", "model", len(pool))
        predictions = np.stack([predicted[tested] for predicted in held_out])
        soft = ballots == "soft"
        labels, proba = (predictions.argmax(axis=2), predictions) if soft else (predictions, None)
        chosen = prune_classifiers(labels, proba, codes[tested], weight[tested], rules)
        names = list(pool)
        team = [names[k] for k in chosen.selected_]
        if prefit:
            members = [pool[name] for name in team]
        else:
            # The members of the team are fitted on all rows, the others not again.
            every, fit = np.arange(len(y)), delayed(_out_of_fold.fit_fold)
            calls = (fit(pool[name], X, y, fit_params[name], every) for name in team)
            members = [model for model, _ in Parallel(self.n_jobs)(calls)]
        weights = chosen.weights_
        if not soft:
            # The most accurate of the tied members decides.
            weights = break_ties(weights, chosen.accuracies_[list(chosen.selected_)])
        attributes = {**features, **vars(chosen), "names_": names, "classes_": classes}
        return Fit(FittedTeam(tuple(members), classes, ballots, weights), attributes)

    def _check_pool(self, prefit):
        items = self.estimators
        if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
            raise ValueError(
                f"`estimators` must be a list of (name, classifier) tuples. Got {items!r}."
            )
        self._validate_names([name for name, _ in items])
        # A string stands for a model that is left out.
        pool = {name: model for name, model in items if not isinstance(model, str)}
        if wrong := [m for _, m in items if isinstance(m, str) and m != "drop"]:
            raise ValueError(f'`estimators` must be classifiers or "drop". Got {wrong[0]!r}.')
        if len(pool) < 2:
            raise ValueError(
                f"`estimators` must hold at least two classifiers to make a team. Got {len(pool)}."
            )
        for name, model in pool.items():
            pool[name] = model = _out_of_fold.check_estimator(
                f"{name!r} in `estimators`", model, is_classifier, prefit
            )
            # Some models have their methods only after `fit`; `_predict_held_out` asks them again.
            if self.voting == "soft" and (prefit or hasattr(model, "predict")):
                _check_has_proba(name, model)
        return pool

    # Members, in the order of `selected_`.
    estimators_ = property(lambda self: list(self.fitted_.estimators), doc="")

    @property
    def named_estimators_(self):
        """Fitted members of the selected team, by name."""
        names = [self.names_[k] for k in self.selected_]
        return Bunch(**dict(zip(names, self.fitted_.estimators)))

    def predict_log_proba(self, X):
        """Predict the logarithms of the team's class probabilities.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n, C)
            Natural logarithms; -inf for classes to which all members give probability 0.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def transform(self, X):
        """Predict with each member of the selected team, as features for another model.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n, n_members * n_classes) or (n, n_members)
            Probabilities, member by member, with ``voting="soft"``; otherwise the labels, as
            positions in `classes_`.
        """
        # Votes of the members: labels (K, n), or probabilities (K, n, C).
        votes = self.fitted_.votes(self.fitted_.inputs.validate(X, self))
        return votes.T if self.fitted_.voting == "hard" else np.concatenate(votes, axis=1)

    def get_feature_names_out(self, input_features=None):
        """Return the names of the columns of `transform`.

        Parameters
        ----------
        input_features : ignored
            Exists for compatibility with scikit-learn.

        Returns
        -------
        ndarray of str
        """
        prefix, columns = type(self).__name__.lower(), [""]
        if self.fitted_.voting == "soft":
            columns = range(len(self.classes_))
        names = self.named_estimators_
        return np.array([f"{prefix}_{n}{c}" for n in names for c in columns], dtype=object)

    def get_params(self, deep=True):
        """Get the parameters and, with `deep`, those of the estimators too.

        Parameters
        ----------
        deep : bool, default=True

        Returns
        -------
        dict
        """
        return self._get_params("estimators", deep=deep)

    def set_params(self, **params):
        """Set parameters, estimators by name, or parameters of estimators.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self
        """
        return self._set_params("estimators", **params)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        # Parameters are not checked yet: `fit` will say what is wrong.
        try:
            pool = [model for _, model in self.estimators if hasattr(model, "fit")]
        except (TypeError, ValueError):
            pool = []
        return _out_of_fold.inherit_tags(tags, pool)


def _check_classes(pool, y, prefit):
    """Check that all fitted models have the same classes, and return these (C,).

    They are the classes of y or, if all models are fitted already, those of the first model.

    Raises
    ------
    ValueError
        If a fitted model has other classes.
    """
    # Models that are not fitted here know their classes already.
    fixed = {n: m for n, m in pool.items() if prefit or _out_of_fold.learns_nothing(m)}
    classes, owner = np.unique(y), "y"
    for name, model in fixed.items():
        if not hasattr(model, "classes_"):
            raise ValueError(f"Fitted classifiers must have `classes_`. {name!r} has not.")
        known = np.array(model.classes_)
        if prefit and owner == "y":
            classes, owner = known, name
        if known.tolist() != classes.tolist():
            raise ValueError(
                f"All models must know the same classes. {name!r} knows {known.tolist()}, and "
                f"{owner!r} has {classes.tolist()}."
            )
    return classes


def _check_has_proba(name, model):
    if not hasattr(model, "predict_proba"):
        raise ValueError(
            f"Estimator {name!r} has no predict_proba, which `voting='soft'` needs. "
            "Wrap it in `sklearn.calibration.CalibratedClassifierCV`, or use "
            "`voting='hard'` or 'majority'."
        )


def _predict_held_out(name, model, X, y, fit_params, splits, voting, classes):
    """Predict codes (n,) or probabilities (n, C) of rows on which the model was not fitted."""
    if splits is None or isinstance(model, FrozenEstimator):
        return predict_votes(model, X, voting, classes)
    predictions = (
        np.zeros(len(y), dtype=int) if voting == "hard" else np.zeros((len(y), len(classes)))
    )
    for train, test in splits:
        fitted, X_test = _out_of_fold.fit_fold(model, X, y, fit_params, train, test)
        if voting == "soft":
            _check_has_proba(name, fitted)
        predictions[test] = predict_votes(fitted, X_test, voting, classes)
    return predictions
