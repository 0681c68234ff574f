"""Deep ensembles, MC dropout and hyper deep ensembles: networks of one architecture."""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skuq import training
from skuq._params import Interval, StrOptions, parameters
from skuq._random import generator
from skuq.ensembles import GreedySelection
from skuq.ensembles._rules import Candidates, check_min_members
from skuq.estimators import _base
from skuq.estimators.methods import _one_architecture as shared
from skuq.estimators.methods._one_architecture import OneArchitecture
from skuq.fitted._ensemble import DropoutPasses
from skuq.networks import MLP
from skuq.tables._inputs import warn_of_few_rows
from skuq.tables._targets import CLASS_CONSTRAINTS, HEADS
from skuq.training import Training, TrainingJob
from skuq.training._network_checks import draw_variables
from skuq.training._train import find_completed

# Constraints of the parameters that regressor and classifier share.
_CONSTRAINTS: dict = {
    **shared.NETWORK_CONSTRAINTS,
    "n_members": [Interval(Integral, 1, None, closed="left")],
    "max_time": [Interval(Real, 0, None, closed="neither"), None],
    "bootstrap": ["boolean"],
}
_DROPOUT_CONSTRAINTS: dict = {
    **shared.NETWORK_CONSTRAINTS,
    "n_passes": [Interval(Integral, 1, None, closed="left")],
    "dropout": [Interval(Real, 0, 1, closed="left"), StrOptions({"auto"})],
}
_DROPOUT = 0.1  # of the default network in MC dropout


def _fit_seeds(estimator: Any, given: _base.Given) -> _base.Fit:
    """Train networks of other seeds and, unless they are given, other validation rows."""
    # Settings without effect are refused before rows are read.
    network, fields = shared.resolve_network(estimator), shared.training_fields(estimator)
    task, n_members = shared.read(estimator, given), estimator.n_members
    # Each member validates on other rows, so that nearly every row trains some member.
    task = task.split(estimator.validation, n_members=n_members)
    model = shared.build_network(network, task)
    recipe, parts = shared.make_recipe(estimator, task, fields), task.splits.parts
    # A sample is of the rows that a member may train on; it validates on the others.
    if estimator.bootstrap:
        # None: validation rows are common to all members, or there are none.
        parts = parts or [(np.arange(len(task.data.x)), None)] * n_members
        rngs = [generator(task.entropy, "bootstrap", k) for k in range(n_members)]
        parts = [(rng.choice(rows, len(rows)), valid) for rng, (rows, valid) in zip(rngs, parts)]
    data, padded = shared.pad_parts(task, parts)
    job = TrainingJob.of_model(
        model, task.targets.head, recipe, task.seeds(n_members), stacked=True, splits=padded
    )
    # All members are one stack: one program with a member axis.
    members = shared.train_jobs(estimator, task, [job], data, parts or ())
    kept = find_completed(members)  # without those that diverged, of which it warns
    members, parts = [members[k] for k in kept], parts and [parts[k] for k in kept]
    return shared.finish(estimator, task, members, np.full(len(kept), 1 / len(kept)), parts=parts)


def _fit_dropout(estimator: Any, given: _base.Given) -> _base.Fit:
    network = shared.resolve_network(estimator, drops="dropout")
    fields, is_auto = shared.training_fields(estimator), isinstance(estimator.dropout, str)
    if not isinstance(network, MLP) and not is_auto:
        raise ValueError(
            '`dropout` must be "auto" with a `network` of your own, whose Dropout layers have '
            f"their rates. Got {estimator.dropout!r}."
        )
    task = shared.read(estimator, given).split(estimator.validation)
    # The same rate drops units in training and in every pass of a prediction.
    dropout = _DROPOUT if is_auto else estimator.dropout
    # Masks need a network that NumPy can run, layer by layer.
    model = shared.build_network(network, task, dropout=dropout)
    shared.check_dropout_layers(model)
    recipe, head = shared.make_recipe(estimator, task, fields), task.targets.head
    job = TrainingJob.of_model(model, head, recipe, task.seeds(1), stacked=True)
    with _base.training_progress(estimator.verbose) as progress:
        members = training.train(job, task.data, report=progress.epochs)
    find_completed(members)  # raises if the only network diverged
    # The masks follow from the entropy: predictions repeat, and passes are functions.
    passes = DropoutPasses(int(estimator.n_passes), task.entropy)
    return shared.finish(estimator, task, members, np.ones(1), passes=passes)


@parameters("estimators.DeepEnsembleRegressor", kind="estimator")
class DeepEnsembleRegressor(OneArchitecture, _base.UncertaintyRegressor):
    """Deep ensemble: a mixture of networks of one architecture that differ in their seeds.

    This is the paper's method (which has M = 5 members), with a plain network or your own. Each
    network predicts a mean and a standard deviation and is trained on the Gaussian likelihood.
    The average noise that members predict is the aleatoric uncertainty, and the disagreement of
    their means the epistemic uncertainty. Members train together in compiled programs, on all
    cores.

    Parameters
    ----------
    n_members : int, default=5
        Number of members. Where members are selected it is the largest number.
    network : "mlp", MLP or callable, default="mlp"
        Plain network with hidden layers, see `skuq.networks.MLP`, or a function
        ``network(input_shape, n_outputs) -> keras.Model`` with `n_outputs` linear outputs. For the
        losses of normals these are the means, then numbers that a softplus turns into standard
        deviations; for classes they are the logits.
    loss : str, default="nll"
        Distribution that each network predicts, and its loss. "nll": mean and standard deviation of
        a normal, by likelihood. "beta-nll": the same with the likelihood's gradient weighted by the
        predicted standard deviation (Seitzer et al. 2022, beta 0.5), so that rows believed to be
        noisy are learnt from, too. "crps": the same two numbers by the continuous ranked
        probability score, which gives better means and intervals where most of y can be predicted.
        "gaussian-mixture": three normals, for heavier tails or several modes. "mse": means only,
        for noise that is known or the same everywhere.
    noise_std : float or array-like of shape (n_outputs,), optional
        With ``loss="mse"``, standard deviation of the noise in units of y. None estimates it from
        held-out rows, or from training rows if none are held out. Other losses refuse it.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int or None, default=100
        Number of rows of a batch. None takes all rows.
    epochs : int, default=1000
        Number of epochs of one network. Early stopping may end it sooner.
    early_stopping_patience : int or None, default=50
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation : float or None, default=0.2
        Share of the rows, of each class in proportion, that is held out for validation. None trains
        on all rows for all `epochs`.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    bootstrap : bool, default=False
        Train each member on a bootstrap sample: rows drawn with replacement.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only.
    target_transform : {"standard", "yeo-johnson", "quantile", transformer}, default="standard"
        Scale of y on which noise is assumed to be normal. "yeo-johnson" and "quantile" are for
        skewed targets and far values; predictions are in units of y in any case. A transformer of
        scikit-learn with an inverse, such as ``FunctionTransformer(np.log1p, np.expm1)``, is cloned
        and fitted to each output; it must be increasing.
    max_time : float, optional
        Maximum seconds of `fit`. If all `epochs` would take longer, the schedule is shortened to
        the epochs that fit; each member keeps its best epoch. One epoch is always trained, so that
        the loading of the backend and a compilation can exceed the limit. Results then depend on
        the speed of the machine. None sets no limit.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    members_ : list of Member
        Records of the trained networks, such as weights and history. They hold validation
        predictions, too.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1.
    noise_std_ : float or ndarray of shape (n_outputs,)
        With ``loss="mse"``, known or estimated standard deviation of the noise, in units of y (of
        transformed y, with a `target_transform`).
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.
    SearchSpaceError
        If `network` gives no usable model.

    See Also
    --------
    TabularEnsembleRegressor : Modern networks for tables, calibrated: a better default.
    HyperDeepEnsembleRegressor : Members that also differ in their regularisation.

    Notes
    -----
    X and y are standardised. Each member holds out other rows for validation. Members whose loss
    stops being finite are left out, with a warning. The ensemble loss is not tuned on: early
    stopping looks at each member alone.

    Networks may agree for no reason where they have seen nothing: far from the rows of `fit` the
    epistemic uncertainty can be too small. `TabularEnsembleRegressor` widens it there.

    References
    ----------
    B. Lakshminarayanan, A. Pritzel, C. Blundell. "Simple and Scalable Predictive
    Uncertainty Estimation using Deep Ensembles", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import DeepEnsembleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = DeepEnsembleRegressor(epochs=20, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    n_members: int = field(default=5, kw_only=False)
    network: MLP | str | Callable[..., Any] = "mlp"
    loss: str = "nll"
    noise_std: ArrayLike | None = None
    learning_rate: float = 0.01
    batch_size: int | None = 100
    epochs: int = 1000
    early_stopping_patience: int | None = 50
    validation: float | None = 0.2
    training: Training | str = "auto"
    bootstrap: bool = False
    preprocess: Any = "auto"
    target_transform: Any = "standard"
    max_time: float | None = None
    random_state: Any = None
    verbose: int | None = None

    _parameter_constraints = {
        **_CONSTRAINTS,
        **shared.REGRESSION_CONSTRAINTS,
        "loss": [StrOptions(set(HEADS))],
    }

    def _fit(self, given):
        return _fit_seeds(self, given)


@parameters("estimators.DeepEnsembleClassifier", kind="estimator")
class DeepEnsembleClassifier(OneArchitecture, _base.UncertaintyClassifier):
    """Deep ensemble: averaged probabilities of networks that differ in their seeds.

    Parameters
    ----------
    n_members : int, default=5
        Number of members. Where members are selected it is the largest number.
    network : "mlp", MLP or callable, default="mlp"
        Plain network with hidden layers, see `skuq.networks.MLP`, or a function
        ``network(input_shape, n_outputs) -> keras.Model`` with `n_outputs` linear outputs. For the
        losses of normals these are the means, then numbers that a softplus turns into standard
        deviations; for classes they are the logits.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int or None, default=100
        Number of rows of a batch. None takes all rows.
    epochs : int, default=1000
        Number of epochs of one network. Early stopping may end it sooner.
    early_stopping_patience : int or None, default=50
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation : float or None, default=0.2
        Share of the rows, of each class in proportion, that is held out for validation. None trains
        on all rows for all `epochs`.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    bootstrap : bool, default=False
        Train each member on a bootstrap sample: rows drawn with replacement.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, by label, which multiply sample weights. None weighs all classes alike,
        and "balanced" weighs them inversely to their frequencies in y. They count wherever rows
        count: in training, in early stopping, and where members are selected or weighed.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only.
    max_time : float, optional
        Maximum seconds of `fit`. If all `epochs` would take longer, the schedule is shortened to
        the epochs that fit; each member keeps its best epoch. One epoch is always trained, so that
        the loading of the backend and a compilation can exceed the limit. Results then depend on
        the speed of the machine. None sets no limit.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    members_ : list of Member
        Records of the trained networks, such as weights and history. They hold validation
        predictions, too.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.
    SearchSpaceError
        If `network` gives no usable model.

    See Also
    --------
    TabularEnsembleClassifier : Modern networks for tables.
    HyperDeepEnsembleClassifier : Members that also differ in their regularisation.

    Notes
    -----
    Networks may agree for no reason where they have seen nothing: far from the rows of `fit` the
    probabilities can be too sure. `TabularEnsembleClassifier` turns them towards the shares of the
    classes there.

    References
    ----------
    B. Lakshminarayanan, A. Pritzel, C. Blundell. "Simple and Scalable Predictive
    Uncertainty Estimation using Deep Ensembles", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import DeepEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DeepEnsembleClassifier(epochs=20, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    n_members: int = field(default=5, kw_only=False)
    network: MLP | str | Callable[..., Any] = "mlp"
    learning_rate: float = 0.01
    batch_size: int | None = 100
    epochs: int = 1000
    early_stopping_patience: int | None = 50
    validation: float | None = 0.2
    training: Training | str = "auto"
    bootstrap: bool = False
    class_weight: Mapping[Any, float] | str | None = None
    preprocess: Any = "auto"
    max_time: float | None = None
    random_state: Any = None
    verbose: int | None = None

    _parameter_constraints = {**_CONSTRAINTS, **CLASS_CONSTRAINTS}

    def _fit(self, given):
        return _fit_seeds(self, given)


@parameters("estimators.MCDropoutRegressor", kind="estimator")
class MCDropoutRegressor(OneArchitecture, _base.UncertaintyRegressor):
    """MC dropout: one network that drops units at random in training and in prediction.

    Every prediction pass is a function drawn from an approximate posterior. The disagreement of
    the passes is the epistemic uncertainty, and the average noise that they predict the aleatoric
    uncertainty.

    Parameters
    ----------
    n_passes : int, default=100
        Number of prediction passes with random units dropped (T in the paper); one call computes
        them all.
    dropout : float or "auto", default="auto"
        Share of hidden units dropped in training and in every prediction pass. "auto" is 0.1, and a
        network of your own has the rates of its Dropout layers.
    network : "mlp", MLP or callable, default="mlp"
        Plain network with hidden layers, see `skuq.networks.MLP`, or a function
        ``network(input_shape, n_outputs) -> keras.Model`` with `n_outputs` linear outputs. For the
        losses of normals these are the means, then numbers that a softplus turns into standard
        deviations; for classes they are the logits.
    loss : {"nll", "mse"}, default="nll"
        Distribution that each network predicts, and its loss. "nll": mean and standard deviation of
        a normal, by likelihood. "mse": means only, for noise that is known or the same everywhere.
    noise_std : float or array-like of shape (n_outputs,), optional
        With ``loss="mse"``, standard deviation of the noise in units of y. None estimates it from
        held-out rows, or from training rows if none are held out. Other losses refuse it.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int or None, default=100
        Number of rows of a batch. None takes all rows.
    epochs : int, default=1000
        Number of epochs of one network. Early stopping may end it sooner.
    early_stopping_patience : int or None, default=50
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation : float or None, default=0.2
        Share of the rows, of each class in proportion, that is held out for validation. None trains
        on all rows for all `epochs`.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only.
    target_transform : {"standard", "yeo-johnson", "quantile", transformer}, default="standard"
        Scale of y on which noise is assumed to be normal. "yeo-johnson" and "quantile" are for
        skewed targets and far values; predictions are in units of y in any case. A transformer of
        scikit-learn with an inverse, such as ``FunctionTransformer(np.log1p, np.expm1)``, is cloned
        and fitted to each output; it must be increasing.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    members_ : list of Member
        Records of the trained networks, such as weights and history. They hold validation
        predictions, too.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1.
    noise_std_ : float or ndarray of shape (n_outputs,)
        With ``loss="mse"``, known or estimated standard deviation of the noise, in units of y (of
        transformed y, with a `target_transform`).
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If the network diverged.
    ValueError
        If `network` has no Dropout layers, or layers other than the usual ones for tables.

    See Also
    --------
    DeepEnsembleRegressor : Several networks, which take longer to train and are better far from
        the data.

    Notes
    -----
    The paper's prior is the penalty of ``training=Training(l2=...)``.

    References
    ----------
    Y. Gal, Z. Ghahramani. "Dropout as a Bayesian Approximation: Representing Model
    Uncertainty in Deep Learning", ICML 2016. Heiss et al., "NOMU", B.1.2.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import MCDropoutRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MCDropoutRegressor(epochs=20, random_state=0).fit(X, y)
    >>> model.predict_uncertainty(X[:2]).epistemic.shape
    (2,)
    """

    n_passes: int = field(default=100, kw_only=False)
    dropout: float | str = "auto"
    network: MLP | str | Callable[..., Any] = "mlp"
    loss: str = "nll"
    noise_std: ArrayLike | None = None
    learning_rate: float = 0.01
    batch_size: int | None = 100
    epochs: int = 1000
    early_stopping_patience: int | None = 50
    validation: float | None = 0.2
    training: Training | str = "auto"
    preprocess: Any = "auto"
    target_transform: Any = "standard"
    random_state: Any = None
    verbose: int | None = None

    _parameter_constraints = {**_DROPOUT_CONSTRAINTS, **shared.REGRESSION_CONSTRAINTS}

    def _fit(self, given):
        return _fit_dropout(self, given)


@parameters("estimators.MCDropoutClassifier", kind="estimator")
class MCDropoutClassifier(OneArchitecture, _base.UncertaintyClassifier):
    """MC dropout: one network that drops units at random in training and in prediction.

    Parameters
    ----------
    n_passes : int, default=100
        Number of prediction passes with random units dropped (T in the paper); one call computes
        them all.
    dropout : float or "auto", default="auto"
        Share of hidden units dropped in training and in every prediction pass. "auto" is 0.1, and a
        network of your own has the rates of its Dropout layers.
    network : "mlp", MLP or callable, default="mlp"
        Plain network with hidden layers, see `skuq.networks.MLP`, or a function
        ``network(input_shape, n_outputs) -> keras.Model`` with `n_outputs` linear outputs. For the
        losses of normals these are the means, then numbers that a softplus turns into standard
        deviations; for classes they are the logits.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int or None, default=100
        Number of rows of a batch. None takes all rows.
    epochs : int, default=1000
        Number of epochs of one network. Early stopping may end it sooner.
    early_stopping_patience : int or None, default=50
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation : float or None, default=0.2
        Share of the rows, of each class in proportion, that is held out for validation. None trains
        on all rows for all `epochs`.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, by label, which multiply sample weights. None weighs all classes alike,
        and "balanced" weighs them inversely to their frequencies in y. They count wherever rows
        count: in training, in early stopping, and where members are selected or weighed.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    members_ : list of Member
        Records of the trained networks, such as weights and history. They hold validation
        predictions, too.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If the network diverged.
    ValueError
        If `network` has no Dropout layers, or layers other than the usual ones for tables.

    See Also
    --------
    DeepEnsembleClassifier : Several networks.

    Notes
    -----
    The paper's prior is the penalty of ``training=Training(l2=...)``.

    References
    ----------
    Y. Gal, Z. Ghahramani. "Dropout as a Bayesian Approximation: Representing Model
    Uncertainty in Deep Learning", ICML 2016. Heiss et al., "NOMU", B.1.2.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import MCDropoutClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MCDropoutClassifier(epochs=20, random_state=0).fit(X, y)
    >>> model.predict_uncertainty(X[:2]).epistemic.shape
    (2,)
    """

    n_passes: int = field(default=100, kw_only=False)
    dropout: float | str = "auto"
    network: MLP | str | Callable[..., Any] = "mlp"
    learning_rate: float = 0.01
    batch_size: int | None = 100
    epochs: int = 1000
    early_stopping_patience: int | None = 50
    validation: float | None = 0.2
    training: Training | str = "auto"
    class_weight: Mapping[Any, float] | str | None = None
    preprocess: Any = "auto"
    random_state: Any = None
    verbose: int | None = None

    _parameter_constraints = {**_DROPOUT_CONSTRAINTS, **CLASS_CONSTRAINTS}

    def _fit(self, given):
        return _fit_dropout(self, given)


_HYPER_CONSTRAINTS: dict = {
    **shared.NETWORK_CONSTRAINTS,
    "n_members": [Interval(Integral, 1, None, closed="left")],
    "n_trials": [Interval(Integral, 1, None, closed="left")],
    "min_members": [Interval(Integral, 1, None, closed="left")],
    "dropout_range": ["array-like"],
    "l2_range": ["array-like"],
    "validation": [Interval(Real, 0, 1, closed="neither")],
    "refit": ["boolean"],
}
_TRAINING_FIELDS = shared.TRAINING_FIELDS - {"l2"}  # penalties are searched


def _fit_settings(estimator: Any, given: _base.Given) -> _base.Fit:
    """Search settings, train the selected ones with several seeds, and select again."""
    # Settings that contradict each other are refused before rows are read.
    network = shared.resolve_network(estimator, drops="dropout_range")
    fields = shared.training_fields(estimator, _TRAINING_FIELDS)
    n_members, n_trials = estimator.n_members, estimator.n_trials
    check_min_members(estimator.min_members, n_members)
    ranges = {
        "dropout": _check_range(estimator, "dropout", 0.999),
        "l2": _check_range(estimator, "l2"),
    }
    task = shared.read(estimator, given)
    # All members share their validation rows, since they are selected on them.
    task = task.split(estimator.validation)
    # The rate is a placeholder: the recipe of each setting has its own.
    model = shared.build_network(network, task, dropout=0.5)
    shared.check_dropout_layers(model)
    warn_of_few_rows(len(task.data.x_valid))
    recipe = shared.make_recipe(estimator, task, fields)
    with _base.training_progress(estimator.verbose) as progress:

        def train_settings(settings, seeds, data=task.data, start=None, **changes):
            recipes = [replace(recipe, **setting, **changes) for setting in settings]
            job = TrainingJob.of_model(
                model, task.targets.head, recipes, seeds, stacked=True, start=start
            )
            return training.train(job, data, report=progress.epochs)

        # rand_search: networks differ in their settings, and start from the same weights.
        # Rates of dropout and factors of l2 are drawn log-uniformly, one pair for each trial.
        # One generator for both, in this order: the settings of a seed never change.
        rng = generator(task.entropy, "settings")
        logarithms = [np.log(bounds) for bounds in ranges.values()]
        drawn = [np.exp(rng.uniform(low, high, n_trials)) for low, high in logarithms]
        settings = [dict(zip(ranges, map(float, pair))) for pair in zip(*drawn)]
        first = draw_variables(model, task.seeds(1)[0])
        searched = train_settings(settings, task.seeds(n_trials), start=[first] * n_trials)
        results = {name: np.array([s[name] for s in settings]) for name in ranges}
        results["val_loss"] = np.array([getattr(m, "score", np.nan) for m in searched])
        kept = find_completed(searched)
        chosen = _select(task, [searched[k] for k in kept], n_members, min_members=1)

        # Stratification: each selected setting is trained again, with n_members seeds.
        settings = [settings[kept[i]] for i in chosen.indices for _ in range(n_members)]
        seeds = task.seeds(n_members, first=n_trials) * len(chosen.indices)
        stratified = train_settings(settings, seeds)
        kept = find_completed(stratified)
        pool = [stratified[k] for k in kept]
        chosen = _select(task, pool, n_members, estimator.min_members)
        members = [pool[i] for i in chosen.indices]
        settings = [settings[kept[i]] for i in chosen.indices]
        if estimator.refit:
            members = _continue(task, train_settings, members, settings)
    # The selection's weights are counts: a member may have been added more than once.
    fit = shared.finish(estimator, task, members, chosen.weights)
    found = {"search_results_": results, "member_settings_": settings}
    return replace(fit, attributes={**fit.attributes, **found})


def _check_range(estimator, name, largest=np.inf):
    given = getattr(estimator, f"{name}_range")
    try:
        values = np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != (2,) or not 0 < values[0] <= values[1] < largest:
        raise ValueError(
            f"`{name}_range` must be two numbers, 0 < low <= high < {largest}. Got {given!r}."
        )
    return values


def _select(task, pool, n_members, min_members):
    """Select greedily on the validation rows: NOMU's Algorithm 1 (Caruana et al., 2004)."""
    data, head = task.data, task.targets.head
    raws = [member.held_out for member in pool]
    candidates = Candidates(raws, data.y_valid.astype("float64"), head, data.weight_valid)
    return GreedySelection(min_members=min_members).choose(candidates, n_members)


def _continue(task, train_settings, members, settings):
    """Continue training the members on all rows, for the average of their best epochs."""
    # Learning rate and optimiser start afresh, weights do not.
    longer = train_settings(
        settings,
        [member.seed for member in members],
        task.data.all_rows(),
        [(member.weights, list(member.state)) for member in members],
        epochs=1 + round(np.mean([member.best_epoch for member in members])),
        early_stopping_patience=None,
        keep="last",
    )
    # A member that diverges keeps its weights from before.
    return [
        old if isinstance(new, FloatingPointError) else replace(new, held_out=old.held_out)
        for old, new in zip(members, longer)
    ]


@parameters("estimators.HyperDeepEnsembleRegressor", kind="estimator")
class HyperDeepEnsembleRegressor(OneArchitecture, _base.UncertaintyRegressor):
    """Hyper deep ensemble: members that differ in regularisation and in seeds.

    `n_trials` random settings of dropout and L2 (kappa in NOMU's Algorithm 2) are trained from the
    same first weights, in one program. A greedy selection finds settings whose networks
    complement each other. Each of them is trained again with `n_members` seeds, and the selection
    is repeated. A network of your own needs Dropout layers, whose rates the settings replace.
    ``refit=True`` continues the training of the members on all rows (HDE* in NOMU).

    Parameters
    ----------
    n_members : int, default=5
        Number of members. Where members are selected it is the largest number.
    n_trials : int, default=50
        Number of networks that the search trains.
    min_members : int, default=2
        Minimum number of distinct members, at most `n_members`. A single member has no epistemic
        uncertainty; 1 is the paper's greedy rule.
    network : "mlp", MLP or callable, default="mlp"
        Plain network with hidden layers, see `skuq.networks.MLP`, or a function
        ``network(input_shape, n_outputs) -> keras.Model`` with `n_outputs` linear outputs. For the
        losses of normals these are the means, then numbers that a softplus turns into standard
        deviations; for classes they are the logits.
    dropout_range : pair of float, default=(1e-3, 0.9)
        Range from which the settings' dropout rates are drawn log-uniformly.
    l2_range : pair of float, default=(1e-7, 1e-1)
        Range from which the settings' penalties ``l2 * sum(w**2)`` are drawn log-uniformly; six
        powers of ten, as in the paper.
    loss : {"nll", "mse"}, default="nll"
        Distribution that each network predicts, and its loss. "nll": mean and standard deviation of
        a normal, by likelihood. "mse": means only, for noise that is known or the same everywhere.
    noise_std : float or array-like of shape (n_outputs,), optional
        With ``loss="mse"``, standard deviation of the noise in units of y. None estimates it from
        held-out rows, or from training rows if none are held out. Other losses refuse it.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int or None, default=100
        Number of rows of a batch. None takes all rows.
    epochs : int, default=1000
        Number of epochs of one network. Early stopping may end it sooner.
    early_stopping_patience : int or None, default=50
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation : float, default=0.2
        Share of the rows, of each class in proportion, that is held out for validation. Settings
        and members are selected on the same rows.
    refit : bool, default=False
        Whether to train again on all rows after everything has been chosen.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only.
    target_transform : {"standard", "yeo-johnson", "quantile", transformer}, default="standard"
        Scale of y on which noise is assumed to be normal. "yeo-johnson" and "quantile" are for
        skewed targets and far values; predictions are in units of y in any case. A transformer of
        scikit-learn with an inverse, such as ``FunctionTransformer(np.log1p, np.expm1)``, is cloned
        and fitted to each output; it must be increasing.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    members_ : list of Member
        Records of the trained networks, such as weights and history. They hold validation
        predictions, too.
    member_settings_ : list of dict
        `dropout` and `l2` of each member.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1.
    search_results_ : dict of ndarray of shape (n_trials,)
        `dropout`, `l2` and `val_loss` of each setting tried; NaN if it diverged.
    noise_std_ : float or ndarray of shape (n_outputs,)
        With ``loss="mse"``, known or estimated standard deviation of the noise, in units of y (of
        transformed y, with a `target_transform`).
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.
    ValueError
        If `network` has no Dropout layers, or layers other than the usual ones for tables.

    See Also
    --------
    DeepEnsembleRegressor : Seeds alone.
    AutoDEUQRegressor : Architectures too.

    Notes
    -----
    All members validate on the same rows. Weights are shares of the steps at which the selection
    added each member.

    References
    ----------
    F. Wenzel, J. Snoek, D. Tran, R. Jenatton. "Hyperparameter Ensembles for Robustness
    and Uncertainty Quantification", NeurIPS 2020. Heiss et al., "NOMU", B.1.4, Algorithms
    1 and 2.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import HyperDeepEnsembleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HyperDeepEnsembleRegressor(n_trials=4, epochs=10, random_state=0).fit(X, y)
    >>> len(model.search_results_["val_loss"])
    4
    """

    n_members: int = field(default=5, kw_only=False)
    n_trials: int = 50
    min_members: int = 2
    network: MLP | str | Callable[..., Any] = "mlp"
    dropout_range: tuple[float, float] = (1e-3, 0.9)
    l2_range: tuple[float, float] = (1e-7, 1e-1)
    loss: str = "nll"
    noise_std: ArrayLike | None = None
    learning_rate: float = 0.01
    batch_size: int | None = 100
    epochs: int = 1000
    early_stopping_patience: int | None = 50
    validation: float = 0.2
    refit: bool = False
    training: Training | str = "auto"
    preprocess: Any = "auto"
    target_transform: Any = "standard"
    random_state: Any = None
    verbose: int | None = None

    _parameter_constraints = {**_HYPER_CONSTRAINTS, **shared.REGRESSION_CONSTRAINTS}

    def _fit(self, given):
        return _fit_settings(self, given)


@parameters("estimators.HyperDeepEnsembleClassifier", kind="estimator")
class HyperDeepEnsembleClassifier(OneArchitecture, _base.UncertaintyClassifier):
    """Hyper deep ensemble: members that differ in regularisation and in seeds.

    `n_trials` random settings of dropout and L2 (kappa in NOMU's Algorithm 2) are trained from the
    same first weights, in one program. A greedy selection finds settings whose networks
    complement each other. Each of them is trained again with `n_members` seeds, and the selection
    is repeated. A network of your own needs Dropout layers, whose rates the settings replace.
    ``refit=True`` continues the training of the members on all rows (HDE* in NOMU).

    Parameters
    ----------
    n_members : int, default=5
        Number of members. Where members are selected it is the largest number.
    n_trials : int, default=50
        Number of networks that the search trains.
    min_members : int, default=2
        Minimum number of distinct members, at most `n_members`. A single member has no epistemic
        uncertainty; 1 is the paper's greedy rule.
    network : "mlp", MLP or callable, default="mlp"
        Plain network with hidden layers, see `skuq.networks.MLP`, or a function
        ``network(input_shape, n_outputs) -> keras.Model`` with `n_outputs` linear outputs. For the
        losses of normals these are the means, then numbers that a softplus turns into standard
        deviations; for classes they are the logits.
    dropout_range : pair of float, default=(1e-3, 0.9)
        Range from which the settings' dropout rates are drawn log-uniformly.
    l2_range : pair of float, default=(1e-7, 1e-1)
        Range from which the settings' penalties ``l2 * sum(w**2)`` are drawn log-uniformly; six
        powers of ten, as in the paper.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int or None, default=100
        Number of rows of a batch. None takes all rows.
    epochs : int, default=1000
        Number of epochs of one network. Early stopping may end it sooner.
    early_stopping_patience : int or None, default=50
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation : float, default=0.2
        Share of the rows, of each class in proportion, that is held out for validation. Settings
        and members are selected on the same rows.
    refit : bool, default=False
        Whether to train again on all rows after everything has been chosen.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, by label, which multiply sample weights. None weighs all classes alike,
        and "balanced" weighs them inversely to their frequencies in y. They count wherever rows
        count: in training, in early stopping, and where members are selected or weighed.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    members_ : list of Member
        Records of the trained networks, such as weights and history. They hold validation
        predictions, too.
    member_settings_ : list of dict
        `dropout` and `l2` of each member.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1.
    search_results_ : dict of ndarray of shape (n_trials,)
        `dropout`, `l2` and `val_loss` of each setting tried; NaN if it diverged.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.
    ValueError
        If `network` has no Dropout layers, or layers other than the usual ones for tables.

    See Also
    --------
    DeepEnsembleClassifier : Seeds alone.

    Notes
    -----
    All members validate on the same rows. Weights are shares of the steps at which the selection
    added each member.

    References
    ----------
    F. Wenzel, J. Snoek, D. Tran, R. Jenatton. "Hyperparameter Ensembles for Robustness
    and Uncertainty Quantification", NeurIPS 2020. Heiss et al., "NOMU", B.1.4, Algorithms
    1 and 2.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from skuq import HyperDeepEnsembleClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = HyperDeepEnsembleClassifier(n_trials=4, epochs=10, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 2)
    """

    n_members: int = field(default=5, kw_only=False)
    n_trials: int = 50
    min_members: int = 2
    network: MLP | str | Callable[..., Any] = "mlp"
    dropout_range: tuple[float, float] = (1e-3, 0.9)
    l2_range: tuple[float, float] = (1e-7, 1e-1)
    learning_rate: float = 0.01
    batch_size: int | None = 100
    epochs: int = 1000
    early_stopping_patience: int | None = 50
    validation: float = 0.2
    refit: bool = False
    training: Training | str = "auto"
    class_weight: Mapping[Any, float] | str | None = None
    preprocess: Any = "auto"
    random_state: Any = None
    verbose: int | None = None

    _parameter_constraints = {**_HYPER_CONSTRAINTS, **CLASS_CONSTRAINTS}

    def _fit(self, given):
        return _fit_settings(self, given)
