"""NOMU: one network for a prediction and its model uncertainty."""

from dataclasses import field
from numbers import Integral, Real
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from skuq import _params
from skuq._params import Interval, StrOptions, parameters, settings_constraint
from skuq.estimators._base import Fit, Given, UncertaintyRegressor, training_progress, unfitted_copy
from skuq.estimators._task import VALIDATION, Task, join_validation, read_task
from skuq.estimators.methods import _nomu_readout, _nomu_training
from skuq.estimators.methods._nomu_readout import Evidence, choose_readout, split_parts
from skuq.fitted._fitted_nomu import FittedNomu, GivenMean, KnownNoise, Readout
from skuq.networks import ArtificialInputs, NOMULoss, NOMUNetwork, NOMUReadout
from skuq.networks._nomu_network import NOMU_SETTINGS
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS, TableInputs
from skuq.tables._scaling import NoScaling
from skuq.tables._targets import NumberTargets
from skuq.training import Training
from skuq.training._recipe import TRAINING

_COUNT = Interval(Integral, 1, None, closed="left")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_TRAINING_FIELDS = ("optimizer", "schedule", "clip_norm")  # of the settings `training`


# Parameters of the toy functions: section 4.1.1 and appendix B.2.2.
_TOY: dict[str, Any] = {
    "network__hidden_units": (1024, 1024, 1024),
    "network__initial_range": 0.05,
    "loss__pi_sqr": 0.1,
    "loss__pi_exp": 0.01,
    "loss__stable": False,
    "loss__l2": 1e-8,
    "loss__side_l2": 1e-8,
    "artificial__kind": "uniform",
    "artificial__n": 256,
    "artificial__box": (-1.1, 1.1),  # of each feature
    "readout__l_min": 1e-3,
    "readout__l_max": 2.0,
    "readout__c": 1.0,
    "learning_rate": 1e-3,
    "batch_size": None,
    "epochs": 1024,
    "early_stopping_patience": None,
    "training__schedule": "constant",
    "training__clip_norm": None,
    "standardize": False,
}
# Those of one feature have a grid (footnote 21).
_TOY_OF_ONE_FEATURE = {**_TOY, "artificial__kind": "grid", "artificial__n": 128}
# Section 4.1.4 and appendix B.2.7.
_UCI: dict[str, Any] = {
    "network__hidden_units": (50,),
    "network__initial_range": 0.05,
    "loss__pi_sqr": 0.1,
    "loss__pi_exp": 0.01,
    "artificial__box_margin": 0.05,
    "readout__l_min": "nll",
    "readout__l_max": "nll",
    "readout__c": "nll",
    "epochs": 400,
    "early_stopping_patience": None,
    "validation": 0.2,
    "training__schedule": "constant",
}
_EXPERIMENTS: dict[str, dict[str, Any]] = {
    "toy": _TOY,
    # Section 4.1.2 and appendix B.2.5; so many artificial inputs for each feature.
    "testbed": _TOY | {"artificial__n": 100, "readout__l_min": 0.1, "readout__l_max": 1.0},
    # Section 4.1.3 and appendix B.2.6.
    "solar": _TOY_OF_ONE_FEATURE
    | {"loss__pi_exp": 0.05, "loss__l2": 1e-19, "loss__side_l2": 1e-19}
    | {"readout__l_min": 0.01, "epochs": 2**14},
    "uci": _UCI,
    # The gap splits in section 4.1.4.
    "uci_gap": _UCI | {"loss__pi_sqr": 0.01, "loss__pi_exp": 0.1, "epochs": 40},
    # Section 4.2 and appendix B.3.1.
    "bayesopt": _TOY
    | {"loss__pi_sqr": 1.0, "readout__l_min": 1e-6}
    | {"artificial__n": 500, "artificial__box": (-1.0, 1.0)},
}


@parameters("estimators.NOMURegressor", kind="estimator")
class NOMURegressor(UncertaintyRegressor):
    """One network with two outputs: a prediction f, and its model uncertainty r.

    r is trained to be zero at the training rows and large at artificial inputs, so that it grows
    away from the rows; it sees the features that f has learnt. NOMU is made for few rows with
    little noise, and for Bayesian optimisation.

    Parameters
    ----------
    network : {"mlp"}, NOMUNetwork or callable, default="mlp"
        Networks of f and r. "mlp" is `skuq.networks.NOMUNetwork` with its defaults. A function
        ``network(input_shape, n_outputs) -> keras.Model`` builds f; it is short for
        ``NOMUNetwork(mean=network)``.
    pretrained : keras.Model or fitted regressor, optional
        Fitted model whose predictions are reproduced exactly. It takes the place of f, and only r
        is trained. It gets the rows as `preprocess` encodes them, so give it numbers without gaps,
        and `fit` the rows that it was trained on. The last hidden layer of a Keras model is an
        input of r; with any other regressor X is the only one. `clone` resets an estimator: for
        cross-validation and searches wrap it in `sklearn.frozen.FrozenEstimator`.
    loss : {"nomu"} or NOMULoss, default="nomu"
        Weights of the terms of the loss. "nomu" is `skuq.networks.NOMULoss` with its defaults.
    artificial : {"uniform", "grid"}, callable, array-like or ArtificialInputs, default="uniform"
        Inputs at which r is raised; see `skuq.networks.ArtificialInputs`, whose `kind` the other
        forms give.
    readout : {"exponential", "linear"} or NOMUReadout, default="exponential"
        Map from r to a standard deviation; see `skuq.networks.NOMUReadout`, whose `kind` a string
        gives. Unless all of its numbers are given, they are chosen on held-out rows.
    band : {"symmetric", "asymmetric"}, default="symmetric"
        "asymmetric" trains one r upwards and another downwards (appendix C.2).
    noise_std : {"learned"}, float or callable, optional
        Standard deviation of the noise, in units of y: a number, or a function ``noise_std(X) ->
        (n,)`` of an array. "learned" first trains f with a Gaussian likelihood, then r on top of
        it (appendix C.1). By default noise is not modelled, and widens the band everywhere. 0.0
        says that there is none: f interpolates its rows, however many, and the band closes there.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int or None, default=100
        Number of rows of a batch. None takes all rows. The loss is a sum over rows: with larger
        batches the rows count more against the artificial inputs.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. All are run unless f stops early, and the weights of the
        smallest training loss are kept. "auto" is 400, or as many as make 2000 steps (1000 below
        100 rows, and 4000 with ``noise_std=0.0``).
    early_stopping_patience : int, "auto" or None, default="auto"
        Number of epochs without improvement on held-out rows after which f stops. Then f is
        trained first, and r on top of the frozen f for all `epochs`: noisy tables need it. At the
        end f is trained on all rows for the best number of epochs. None, as in the paper, trains
        both parts together for all epochs. "auto" is an eighth of `epochs`, at least 10, with 100
        rows or more, and None with fewer, with ``noise_std=0.0`` or with `connect_gradient`.
    validation : float, int, cross-validation generator, "gaps" or "auto", default="auto"
        Rows that are held out to choose the numbers of `readout`: a share of the rows, or folds
        that are held out in turn, given by their number or by a splitter of scikit-learn. "auto"
        takes 10 folds (at most one for each row) below 30 rows, 5 below 500 rows, and a share of
        0.2 with more or with ``refit=False``. "gaps" holds out 5 folds and also the middle third
        of the rows along each of 5 features drawn at random: it is for predictions far from all
        rows. It takes no `groups`.
    refit : bool, default=True
        Whether to train again on all rows after everything has been chosen.
    training : {"auto"} or Training, default="auto"
        Optimiser ("adam" by default), schedule and `clip_norm` (1.0) of the training, see
        `skuq.training.Training`. The default schedule lets the learning rate fall to a hundredth
        along half a cosine below 100 rows and with ``noise_std=0.0``, unless f stops early, and
        is constant otherwise.
    refine : bool, default=False
        Whether to minimise the squared error further after training, in double precision: by the
        Levenberg-Marquardt method for up to 1500 values, and by L-BFGS for more. For data without
        noise (``noise_std=0.0``), as results of simulations are. f is then trained first, and meets
        the data about a thousand times more closely.
    standardize : bool, default=True
        Whether to standardise X and y. False leaves them in their units, for data in [-1, 1] as in
        the paper.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only. Artificial inputs are
        drawn in the preprocessed columns, where those of indicator columns are between 0 and 1. The
        box of artificial inputs, `pretrained`, and
        functions for `artificial` and `noise_std`, also refer to the preprocessed columns.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    c_, l_min_, l_max_ : float
        The values given or chosen.
    noise_factor_ : float
        Factor of the noise's standard deviation: 1 unless noise is learnt and held-out rows
        require another (the root of c2 in Eq. 58).
    member_ : Member
        Trained network as data: weights and history.
    mean_member_ : Member or None
        Network of f, and of the noise if that is learnt; None if f was trained together with r.
    box_ : ndarray of shape (n_features, 2) or None
        Box in which artificial inputs were drawn.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedNomu
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
        If a network diverged.
    SearchSpaceError
        If a function for `network` gives no usable model.
    ValueError
        If parameters contradict each other, the box holds no row, or `pretrained` does not fit X.

    See Also
    --------
    DeepEnsembleRegressor : Several networks that learn noise; better for noisy tables.
    MCDropoutRegressor : One network whose uncertainty hardly narrows at the data.

    Notes
    -----
    The epistemic part of `predict_uncertainty` is c times the model's standard deviation. Without
    `noise_std` the aleatoric part is zero, and noise in the data leads to larger l_min and c.

    References
    ----------
    J. Heiss, J. Weissteiner, H. Wutte, S. Seuken, J. Teichmann. "NOMU: Neural
    Optimization-based Model Uncertainty", ICML 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import NOMURegressor
    >>> X = np.array([[-1.0], [-0.5], [0.0], [0.8]])
    >>> from skuq.networks import NOMUReadout
    >>> readout = NOMUReadout(l_min=0.001, l_max=2, c=1)
    >>> model = NOMURegressor(readout=readout, epochs=200, random_state=0)
    >>> _, std = model.fit(X, X.ravel() ** 2).predict([[0.0], [0.4]], return_std=True)
    >>> bool(std[0] < std[1])
    True
    """

    network: Any = field(default="mlp", kw_only=False)
    pretrained: Any = None
    loss: Any = "nomu"
    artificial: Any = "uniform"
    readout: Any = "exponential"
    band: str = "symmetric"
    noise_std: Any = None
    learning_rate: float = 0.01
    batch_size: int | None = 100
    epochs: int | str = "auto"
    early_stopping_patience: int | str | None = "auto"
    validation: Any = "auto"
    refit: bool = True
    training: Any = "auto"
    refine: bool = False
    standardize: Any = True
    preprocess: Any = "auto"
    random_state: Any = None
    verbose: int | None = None

    _settings = {**NOMU_SETTINGS, "training": TRAINING}
    _parameter_constraints = {
        "network": [*settings_constraint(NOMU_SETTINGS["network"], NOMUNetwork), callable],
        "loss": settings_constraint(NOMU_SETTINGS["loss"], NOMULoss),
        "artificial": [
            *settings_constraint(NOMU_SETTINGS["artificial"], ArtificialInputs),
            callable,
            "array-like",
        ],
        "readout": settings_constraint(NOMU_SETTINGS["readout"], NOMUReadout),
        "band": [StrOptions({"symmetric", "asymmetric"})],
        "pretrained": [_params.HasMethods(["predict"]), None],
        "noise_std": [StrOptions({"learned"}), _NOT_NEGATIVE, callable, None],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [_COUNT, None],
        "epochs": [_COUNT, StrOptions({"auto"})],
        "early_stopping_patience": [_COUNT, StrOptions({"auto"}), None],
        "validation": [*VALIDATION, StrOptions({"gaps"})],
        "refit": ["boolean"],
        "refine": ["boolean"],
        "training": settings_constraint(TRAINING, Training),
        "standardize": ["boolean"],
        **PREPROCESS_CONSTRAINTS,
        "random_state": ["random_state"],
        "verbose": ["verbose", None],
    }

    @classmethod
    def from_paper(cls, name: str, n_features: int = 1, **changes):
        """Make a model with the settings of one of the paper's experiments.

        Parameters
        ----------
        name : {"toy", "testbed", "solar", "uci", "uci_gap", "bayesopt"}
            "toy" is section 4.1.1, "testbed" 4.1.2, "solar" 4.1.3, "uci" and "uci_gap" 4.1.4,
            "bayesopt" 4.2. All but the UCI ones leave c at 1 and expect X in [-1, 1], and y too,
            but for "testbed". They have three hidden layers of 1024 units: a fit takes about a
            minute ("solar" sixteen times as long).
        n_features : int, default=1
            Number of features of X.
        **changes
            Parameters that differ from those settings, by name, as for `set_params`.

        Examples
        --------
        >>> model = NOMURegressor.from_paper("toy", network__hidden_units=(64, 64), epochs=100)
        >>> model.network
        NOMUNetwork(hidden_units=(64, 64), initial_range=0.05)
        """
        if name not in _EXPERIMENTS:
            raise ValueError(f"`name` must be one of {list(_EXPERIMENTS)}. Got {name!r}.")
        # Some settings depend on the number of features.
        has_grid = name == "toy" and n_features == 1
        settings = dict(_TOY_OF_ONE_FEATURE if has_grid else _EXPERIMENTS[name])
        if "artificial__box" in settings:
            settings["artificial__box"] = [settings["artificial__box"]] * n_features
        if name == "testbed":
            settings["artificial__n"] *= n_features
        return cls().set_params(**settings).set_params(**changes)

    def fit(
        self,
        X,
        y,
        sample_weight=None,
        *,
        X_val=None,
        y_val=None,
        sample_weight_val=None,
        validation_data=None,
        groups=None,
    ):
        """Train the networks, and choose those of c, l_min and l_max that are not numbers.

        They are chosen on held-out rows. By default, the networks are then trained again on all
        rows, see `refit`.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, n_features)
            Numbers, booleans, strings and categories, with missing values; see `preprocess`.
        y : array-like of shape (n,) or (n, n_outputs)
        sample_weight : array-like of shape (n,), optional
            Non-negative; rows of weight 0 are left out. Only ratios of weights matter: an
            artificial input counts as much as a row of mean weight.
        X_val : array-like or DataFrame of shape (n_val, n_features), optional
            Rows to choose by, instead of a part of X; without effect if nothing is to be chosen.
            Needed with `pretrained`, which has been trained on the rows of X. Pipelines transform
            them with ``transform_input=["X_val"]``.
        y_val : array-like of shape (n_val,) or (n_val, n_outputs), optional
            Targets of `X_val`.
        sample_weight_val : array-like of shape (n_val,), optional
            Non-negative weights of the rows of `X_val`.
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            `X_val`, `y_val` and `sample_weight_val` as one tuple, in place of these.
        groups : array-like of shape (n,), optional
            Groups of rows; a group is never split between training and validation.

        Returns
        -------
        self
        """
        validation = join_validation(validation_data, X_val, y_val, sample_weight_val)
        return self._fit_by(Given(X, y, sample_weight, validation, groups))

    @property
    def _held_out(self):
        chosen = _params.resolve_settings(self, "readout").is_chosen
        return self.validation if chosen else None

    def _fit(self, given):
        # Settings first: reading rows takes longer. A user's function or table is not settings yet.
        names = "network", "artificial", "loss", "readout", "training"
        network, artificial, loss, readout, recipe = (
            _params.resolve_settings(self, k) for k in names
        )
        if not isinstance(network, _params.Settings):
            network = NOMUNetwork(mean=network)
        if not isinstance(artificial, _params.Settings):
            artificial = ArtificialInputs(artificial)
        recipe = recipe.fields(_TRAINING_FIELDS)
        _refuse_without_effect(self, readout)
        _refuse_contradictions(self, network)
        task = _read(self, given, readout)
        with training_progress(self.verbose) as progress:
            settings = network, loss, artificial, readout, recipe
            trainer = _make_trainer(self, task, progress.epochs, *settings)
            parts = _split(self, task, readout)
            # With validation data given, or nothing to choose, all rows train at once. Without a
            # refit there is a single network: on all rows, or on those of one split.
            refits = readout.is_chosen and self.refit and task.validation is None
            networks = trainer.train(parts)
            network = trainer.refit(networks) if refits else networks[0]
        chosen = Readout(readout.kind, self.band, readout.l_min, readout.l_max, readout.c)
        if readout.is_chosen:
            rows = trainer.rows if refits else trainer.rows.take(parts[0][0])
            chosen = _choose(trainer, readout, self.band, task, parts, networks, network, rows)
        # Only a band that is as wide as y varies can say how fast it grows.
        box = trainer.sampler.box if chosen.growth else None
        fitted = FittedNomu(task.inputs, task.targets, network, chosen, box)
        return Fit(fitted, {**task.attributes, "box_": trainer.sampler.box})

    def readout_weights(self):
        """Return the network as affine functions of ReLU units, for a mixed integer programme.

        The model must have one output, ``readout="linear"``, the activation "relu" and a
        symmetric band.

        Returns
        -------
        ReluReadout
            ``readout(X)`` gives mean and epistemic standard deviation, as the model does within
            its box `box_`. `hidden`, `mean` and `raw` hold weights and offsets, in units of X and
            y; the standard deviation is ``unit * clip(raw, l_min, l_max)``.

        Raises
        ------
        ValueError
            If the model has other settings, or layers that are not dense, or `pretrained`.
        """
        return _nomu_readout.read_relu_readout(self.fitted_)

    # Parts of the fitted model, which the class docstring describes.
    c_ = property(attrgetter("fitted_.readout.c"), doc="")
    l_min_ = property(attrgetter("fitted_.readout.l_min"), doc="")
    l_max_ = property(attrgetter("fitted_.readout.l_max"), doc="")
    noise_factor_ = property(attrgetter("fitted_.readout.noise_factor"), doc="")
    member_ = property(attrgetter("fitted_.network.member"), doc="")
    mean_member_ = property(attrgetter("fitted_.network.mean_member"), doc="")
    preprocessor_ = property(attrgetter("fitted_.inputs.preprocessor"), doc="")


def _refuse_without_effect(model: Any, readout: NOMUReadout) -> None:
    of_kind = isinstance(model.validation, str)
    # Numbers are taken as they are: no rows are held out.
    if not readout.is_chosen:
        automatic = {"validation": "auto", "refit": True, "early_stopping_patience": "auto"}
        given = {
            "validation": not of_kind or model.validation == "gaps",
            "refit": not model.refit,
            "early_stopping_patience": isinstance(model.early_stopping_patience, Integral),
        }
        if name := _params.first_true(given):
            raise ValueError(
                f"`{name}`={model.get_params()[name]!r} has no effect, since `readout` has numbers "
                "for l_min, l_max and c, and no rows are held out: leave one of these to be "
                f"chosen, or {name}={automatic[name]!r}."
            )
        return
    # One network suffices for one share of the rows.
    is_share = isinstance(model.validation, Real) and not isinstance(model.validation, Integral)
    holds_share_out = model.validation == "auto" if of_kind else is_share
    if not model.refit and model.validation is not None and not holds_share_out:
        raise ValueError(
            f"`validation`={model.validation!r} trains on parts of the rows only, so that "
            "`refit` must be True: give a share such as validation=0.2, or refit=True."
        )


def _is_noiseless(model: Any) -> bool:
    return isinstance(model.noise_std, Real) and model.noise_std == 0


def _refuse_contradictions(model: Any, network: NOMUNetwork) -> None:
    """Raise ValueError for parameters that contradict each other about the mean f."""
    given, learns = model.pretrained is not None, isinstance(model.noise_std, str)
    # An "auto" that would contradict others does not stop f early.
    stops = isinstance(model.early_stopping_patience, Integral)
    # Ways in which f is trained or known before r.
    mean_first = {
        "`early_stopping_patience`": stops,
        "`noise_std`='learned'": learns,
        "`pretrained`": given,
    }
    # A refined f is trained alone, on all of its rows, for the squared error.
    unrefined = {
        f"`noise_std`={model.noise_std!r}": not _is_noiseless(model),
        f"`early_stopping_patience`={model.early_stopping_patience!r}": stops,
        "`network` with connect_gradient=True": network.connect_gradient,
        "`pretrained`": given,
        "a function for `network`": network.mean is not None,
    }
    conflicts = {
        f"`network` with connect_gradient=True trains f and r together, and "
        f"{_params.first_true(mean_first)} gives f before r: give up one of them.": (
            network.connect_gradient and any(mean_first.values())
        ),
        "`pretrained` is the prediction f, so that `noise_std`='learned', "
        "`early_stopping_patience` and a function for `network` have no effect: leave them "
        "out.": given and (learns or stops or network.mean is not None),
        f"`network` with connect_layers={network.connect_layers} needs the layers of f, and "
        "`pretrained` is no Keras model: leave `connect_layers` out.": (
            given and not GivenMean(model.pretrained).is_keras and network.connect_layers > 1
        ),
        "`refine`=True makes the mean interpolate data without noise, before r is trained. It is "
        f"not possible with {_params.first_true(unrefined)}. Set noise_std=0.0 and leave the "
        "others at their defaults.": model.refine and any(unrefined.values()),
    }
    _params.refuse(conflicts)


def _read(model: Any, given: Given, readout: NOMUReadout) -> Task:
    """Read the rows, and learn the scales of all of them, which NOMU's folds share."""
    least = 2 if readout.is_chosen else 1
    inputs = TableInputs(model.preprocess, scaling=None if model.standardize else NoScaling())
    narrow = model.pretrained is None
    targets = NumberTargets(standardize=model.standardize, narrow_constants=narrow)
    task = read_task(model, inputs, targets, given, min_rows=least)
    if len(task.rows.used) < least:
        raise ValueError(
            "Training and validation need at least 2 rows of positive weight. "
            f"Got {len(task.rows.used)} (n_samples={len(task.rows.X)})."
        )
    return task.split()


def _make_trainer(model, task, report, network, loss, artificial, readout, recipe):
    """Make the trainer of the task's rows, with defaults that depend on their number."""
    rows, given, noise = task.splits.train, None, None
    if model.pretrained is not None:
        given = GivenMean(model.pretrained)
        # A model of encoded columns may know them by any names.
        names = None if task.inputs.encodes else task.inputs.feature_names
        given.check(rows.X.shape[1], names, shows_layers=network.connect_layers > 0)
    if model.noise_std is not None and not isinstance(model.noise_std, str):
        noise = KnownNoise(model.noise_std, task.targets.n_outputs)
    # Few rows, and rows without noise, are to be interpolated.
    patience = model.early_stopping_patience
    if patience == "auto" and (
        len(rows.X) < _nomu_training.FEW_ROWS or network.connect_gradient or _is_noiseless(model)
    ):
        patience = None
    # The settings are copies of the user's, so that they may hold encoded rows.
    # A table is validated like X, against its features, which only a copy can have during a fit.
    reader = unfitted_copy(model)
    vars(reader).update(task.features)
    artificial.kind = _nomu_training.encode_artificial(artificial.kind, task.inputs, reader)
    return _nomu_training.NomuTrainer(
        task,
        report,
        network,
        loss,
        _nomu_training.ArtificialSampler(artificial, rows.X, task.inputs.scaling),
        {"learning_rate": model.learning_rate, "batch_size": model.batch_size, **recipe},
        epochs=None if isinstance(model.epochs, str) else model.epochs,
        noiseless=_is_noiseless(model),
        # f stops early on the rows that choose the readout; a given f does not train.
        patience=patience if readout.is_chosen and given is None else None,
        n_sides=1 + (model.band == "asymmetric"),
        learns_noise=isinstance(model.noise_std, str),
        refines=model.refine,
        given=given,
        noise=noise,
    )


def _split(model: Any, task: Task, readout: NOMUReadout) -> list[_nomu_training.Part]:
    """List the rows of each network: one for each fold or split, or one for all rows."""
    # The user's validation rows take the place of folds, and all rows train.
    if not readout.is_chosen or task.validation is not None:
        return [(np.arange(len(task.rows.used)), None)]
    if model.pretrained is not None:
        raise ValueError(
            "`pretrained` has seen the rows it is given, and its errors there say little of "
            "others: give `validation_data`, or numbers for l_min, l_max and c of `readout`."
        )
    if model.validation is None:
        raise ValueError(
            "`validation`=None holds no rows out, but c, l_min or l_max of the readout are to be "
            'chosen on some: set validation="auto", give `validation_data`, or numbers for all '
            "three."
        )
    groups = task.groups
    if groups is not None:  # names may be of any kind, None included
        groups = pd.factorize(groups, use_na_sentinel=False)[0]
    of_task = task.rows, task.entropy, groups, task.units
    return split_parts(model.validation, *of_task, refits=model.refit)


def _choose(trainer, given, band, task, parts, networks, network, rows) -> Readout:
    """Choose the readout of the final network, which `rows` have trained, on held-out rows."""
    take = trainer.rows.take
    held_out = [
        (of_part, task.validation if valid is None else take(valid), take(train))
        for of_part, (train, valid) in zip(networks, parts)
    ]
    _nomu_readout.warn_of_few_rows(given, sum(len(part.X) for _, part, _ in held_out))
    # The band between rows, whose width "auto" compares with that of y.
    raw, distance = trainer.draw_between_rows(network)
    evidence = Evidence(held_out, network, rows, raw, distance, task.inputs, task.targets)
    noiseless, learns_noise = trainer.noiseless, trainer.learns_noise
    return choose_readout(given, band, evidence, noiseless=noiseless, learns_noise=learns_noise)
