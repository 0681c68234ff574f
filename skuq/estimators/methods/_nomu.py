"""NOMU: one network for a prediction and its model uncertainty."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from skuq._checks import first_true
from skuq._params import (
    HasMethods,
    Interval,
    Settings,
    StrOptions,
    resolve_settings,
    settings_constraint,
)
from skuq.estimators._base import Given, UncertaintyRegressor, fits, training_progress
from skuq.estimators._task import VALIDATION, join_validation, read_task
from skuq.estimators.methods._nomu_readout import (
    Evidence,
    choose_readout,
    read_relu_readout,
    warn_of_few_rows,
)
from skuq.estimators.methods._nomu_rows import ArtificialSampler, encode_artificial, split_parts
from skuq.estimators.methods._nomu_training import NomuTrainer, Setup
from skuq.files._registry import saved_as
from skuq.fitted._fitted_nomu import FittedNomu, GivenMean, KnownNoise, Readout
from skuq.networks import ArtificialInputs, NOMULoss, NOMUNetwork, NOMUReadout
from skuq.networks._nomu_network import NOMU_SETTINGS
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS, TableInputs
from skuq.tables._scaling import NoScaling
from skuq.tables._targets import NumberTargets
from skuq.training import Training
from skuq.training._recipe import TRAINING

_TRAINING_FIELDS = ("optimizer", "schedule", "clip_norm")  # of the settings `training`
_MIN_ROWS_TO_STOP_EARLY = 100  # with early_stopping_patience="auto"


class _Resolved(NamedTuple):
    """Settings of a model as validated objects, and the given fields of `training`."""

    network: NOMUNetwork
    loss: NOMULoss
    artificial: ArtificialInputs
    readout: NOMUReadout
    training: dict[str, Any]


@saved_as("estimators.NOMURegressor", kind="estimator")
@dataclass(eq=False, repr=False)
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
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only. Artificial inputs are drawn in the preprocessed columns, where those of
        indicator columns are between 0 and 1. The box of artificial inputs, `pretrained`, and
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

    With more columns than rows, f learns what ridge regression leaves, where that predicts rows
    left out better than a regression that is not linear.

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

    network: Any = "mlp"
    _: KW_ONLY
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
        "pretrained": [HasMethods(["predict"]), None],
        "noise_std": [
            StrOptions({"learned"}),
            Interval(Real, 0, None, closed="left"),
            callable,
            None,
        ],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "epochs": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "early_stopping_patience": [
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"auto"}),
            None,
        ],
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
            "bayesopt" 4.2. All but the UCI ones expect X and y in [-1, 1] and leave c at 1. They
            have three hidden layers of 1024 units: a fit takes about a minute ("solar" sixteen
            times as long).
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
        return cls().set_params(**_paper_settings(name, n_features)).set_params(**changes)

    @fits
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
        given = Given(X, y, sample_weight, validation, groups)
        settings = self._resolve()
        chooses = settings.readout.is_chosen
        task = read_task(
            self,
            TableInputs(self.preprocess, scaling=None if self.standardize else NoScaling()),
            NumberTargets(standardize=self.standardize, narrow_constants=self.pretrained is None),
            given,
            min_rows=2 if chooses else 1,
        )
        vars(self).update(task.attributes)
        if chooses and len(task.rows.used) < 2:
            raise ValueError(
                "Training and validation need at least 2 rows of positive weight. "
                f"Got {len(task.rows.used)} (n_samples={len(task.rows.X)})."
            )
        # Scales are those of all rows; NOMU's folds share them.
        task = task.split()
        trainer = self._make_trainer(settings, task)
        setups = self._make_setups(settings, task)
        with training_progress(self.verbose) as progress:
            networks = trainer.train(setups, progress.epochs)
            # Without a refit there is a single network: on all rows, or on those of one split.
            setup, network = setups[0], networks[0]
            # With validation data given, it has been trained on all rows already.
            if chooses and self.refit and task.validation is None:
                setup = trainer.refit_setup(networks)
                (network,) = trainer.train([setup], progress.epochs)
        folds = list(zip(setups, networks))
        self.fitted_ = self._assemble(settings, task, trainer, folds, setup, network)
        self.entropy_, self.box_ = task.entropy, trainer.sampler.box
        return self

    def _resolve(self) -> _Resolved:
        """Return the settings as validated objects, and refuse parameters without effect."""
        # A user's function or table is not settings yet.
        network, artificial = (resolve_settings(self, name) for name in ("network", "artificial"))
        settings = _Resolved(
            network if isinstance(network, Settings) else NOMUNetwork(mean=network),
            resolve_settings(self, "loss"),
            artificial if isinstance(artificial, Settings) else ArtificialInputs(artificial),
            resolve_settings(self, "readout"),
            resolve_settings(self, "training").fields(_TRAINING_FIELDS),
        )
        if not settings.readout.is_chosen:
            # Without a choice of the readout, these parameters have no effect.
            automatic = {"validation": "auto", "refit": True, "early_stopping_patience": "auto"}
            given = {
                "validation": not isinstance(self.validation, str) or self.validation == "gaps",
                "refit": not self.refit,
                "early_stopping_patience": isinstance(self.early_stopping_patience, Integral),
            }
            if name := first_true(given):
                raise ValueError(
                    f"`{name}`={getattr(self, name)!r} has no effect, since `readout` has numbers "
                    "for l_min, l_max and c, and no rows are held out: leave one of these to be "
                    f"chosen, or {name}={automatic[name]!r}."
                )
        elif not self.refit and self.validation is not None and not self._holds_share_out:
            raise ValueError(
                f"`validation`={self.validation!r} trains on parts of the rows only, so that "
                "`refit` must be True: give a share such as validation=0.2, or refit=True."
            )
        self._check_mean(settings.network)
        return settings

    def _check_mean(self, network: NOMUNetwork):
        """Refuse parameters that contradict each other about the mean f."""
        given, learns = self.pretrained is not None, isinstance(self.noise_std, str)
        stops = isinstance(self.early_stopping_patience, Integral)
        # Ways in which f is trained or known before r.
        mean_first = {
            "`early_stopping_patience`": stops,
            "`noise_std`='learned'": learns,
            "`pretrained`": given,
        }
        conflicts = {
            f"`network` with connect_gradient=True trains f and r together, and "
            f"{first_true(mean_first)} gives f before r: give up one of them.": (
                network.connect_gradient and any(mean_first.values())
            ),
            "`pretrained` is the prediction f, so that `noise_std`='learned', "
            "`early_stopping_patience` and a function for `network` have no effect: leave them "
            "out.": given and (learns or stops or network.mean is not None),
            f"`network` with connect_layers={network.connect_layers} needs the layers of f, and "
            "`pretrained` is no Keras model: leave `connect_layers` out.": (
                given
                and not hasattr(self.pretrained, "predict_on_batch")
                and network.connect_layers > 1
            ),
        }
        if message := first_true(conflicts):
            raise ValueError(message)
        # A refined f is trained alone, on all of its rows, for the squared error.
        unrefined = {
            f"`noise_std`={self.noise_std!r}": not self._is_noiseless,
            f"`early_stopping_patience`={self.early_stopping_patience!r}": stops,
            "`network` with connect_gradient=True": network.connect_gradient,
            "`pretrained`": given,
            "a function for `network`": network.mean is not None,
        }
        if self.refine and (reason := first_true(unrefined)):
            raise ValueError(
                "`refine`=True makes the mean interpolate data without noise, before r is trained. "
                f"It is not possible with {reason}. Set noise_std=0.0 and leave the others at "
                "their defaults."
            )

    @property
    def _holds_share_out(self) -> bool:
        """Whether `validation` can be one share of the rows, which one network suffices for."""
        if isinstance(self.validation, str):
            return self.validation == "auto"
        return isinstance(self.validation, Real) and not isinstance(self.validation, Integral)

    @property
    def _is_noiseless(self) -> bool:
        """Whether the parameters say that the data have no noise."""
        return isinstance(self.noise_std, Real) and self.noise_std == 0

    def _make_trainer(self, settings, task):
        """Make the trainer of the task's rows, with defaults that depend on their number."""
        rows, given, noise = task.splits.train, None, None
        if self.pretrained is not None:
            given = GivenMean(self.pretrained)
            # A model of encoded columns may know them by any names.
            names = None if task.inputs.encodes else task.inputs.feature_names
            shows_layers = settings.network.connect_layers > 0
            given.check(rows.X.shape[1], names, shows_layers=shows_layers)
        if self.noise_std is not None and not isinstance(self.noise_std, str):
            noise = KnownNoise(self.noise_std, task.targets.n_outputs)
        # Few rows, and rows without noise, are to be interpolated.
        patience = self.early_stopping_patience
        if patience == "auto" and (
            len(rows.X) < _MIN_ROWS_TO_STOP_EARLY
            or settings.network.connect_gradient
            or self._is_noiseless
        ):
            patience = None
        # The settings are copies of the user's, so that they may hold encoded rows.
        artificial = settings.artificial
        artificial.kind = encode_artificial(artificial.kind, task.inputs, self)
        return NomuTrainer(
            rows,
            task.inputs,
            task.targets,
            settings.network,
            settings.loss,
            ArtificialSampler(artificial, rows.X, task.inputs.scaling),
            settings.training,
            task.entropy,
            self.learning_rate,
            batch_size=self.batch_size,
            epochs=None if isinstance(self.epochs, str) else self.epochs,
            noiseless=self._is_noiseless,
            validation=task.validation,
            # f stops early on the rows that choose the readout; a given f does not train.
            patience=patience if settings.readout.is_chosen and given is None else None,
            n_sides=1 + (self.band == "asymmetric"),
            learns_noise=isinstance(self.noise_std, str),
            refines=self.refine,
            given=given,
            noise=noise,
        )

    def _make_setups(self, settings, task):
        """Make one setup for each fold or split, or one for all rows."""
        rows, parts = task.splits.train, [(np.arange(len(task.splits.train.X)), None)]
        # The user's validation rows take the place of folds, and all rows train.
        if settings.readout.is_chosen and task.validation is None:
            if self.pretrained is not None:
                raise ValueError(
                    "`pretrained` has seen the rows it is given, and its errors there say little "
                    "of others: give `validation_data`, or numbers for l_min, l_max and c of "
                    "`readout`."
                )
            if self.validation is None:
                raise ValueError(
                    "`validation`=None holds no rows out, but c, l_min or l_max of the readout "
                    'are to be chosen on some: set validation="auto", give `validation_data`, or '
                    "numbers for all three."
                )
            groups = task.groups
            if groups is not None:  # names may be of any kind, None included
                groups = pd.factorize(groups, use_na_sentinel=False)[0][task.rows.used]
            parts = split_parts(self.validation, rows, task.entropy, groups, refits=self.refit)
        return [Setup(*part) for part in parts]

    def _assemble(self, settings, task, trainer, folds, setup, network):
        """Make the fitted model of the final network; choose its readout on the held-out rows."""
        rows, given = task.splits.train, settings.readout
        if given.is_chosen:
            held_out = [
                (
                    one,
                    task.validation if fold.valid is None else rows.take(fold.valid),
                    rows.take(fold.train),
                )
                for fold, one in folds
            ]
            warn_of_few_rows(given, sum(len(part.X) for _, part, _ in held_out))
            # The band between rows, whose width "auto" compares with that of y.
            between = trainer.draw_between_rows(network)
            readout = choose_readout(
                given,
                self.band,
                Evidence(held_out, network, rows.take(setup.train), *between),
                task.inputs,
                task.targets,
                noiseless=self._is_noiseless,
                learns_noise=trainer.learns_noise,
            )
        else:
            readout = Readout(given.kind, self.band, given.l_min, given.l_max, given.c)
        # Only a band that is as wide as y varies can say how fast it grows.
        box = trainer.sampler.box if readout.growth else None
        return FittedNomu(task.inputs, task.targets, network, readout, box)

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
        check_is_fitted(self)
        return read_relu_readout(self.fitted_)

    # Parts of the fitted model, which the class docstring describes.
    c_ = property(attrgetter("fitted_.readout.c"), doc="")
    l_min_ = property(attrgetter("fitted_.readout.l_min"), doc="")
    l_max_ = property(attrgetter("fitted_.readout.l_max"), doc="")
    noise_factor_ = property(attrgetter("fitted_.readout.noise_factor"), doc="")
    member_ = property(attrgetter("fitted_.network.member"), doc="")
    mean_member_ = property(attrgetter("fitted_.network.mean_member"), doc="")
    preprocessor_ = property(attrgetter("fitted_.inputs.preprocessor"), doc="")


def _paper_settings(name: str, n_features: int) -> dict:
    """Return the parameters of one of the paper's experiments, for `n_features` features."""
    # Section 4.1.1 and appendix B.2.2; data lie in [-1, 1], so nothing is standardised.
    toy = {
        "network": NOMUNetwork((1024, 1024, 1024), initial_range=0.05),
        "loss": NOMULoss(stable=False, l2=1e-8, side_l2=1e-8),
        "artificial": ArtificialInputs(n=256, box=[(-1.1, 1.1)] * n_features),
        "readout": NOMUReadout(l_min=1e-3, l_max=2.0, c=1.0),
        "learning_rate": 1e-3,
        "batch_size": None,
        "epochs": 1024,
        "early_stopping_patience": None,
        "training": Training(schedule="constant", clip_norm=None),
        "standardize": False,
    }
    # Appendix B.2.7.
    uci = {
        "network": NOMUNetwork((50,), initial_range=0.05),
        "loss": NOMULoss(),
        "artificial": ArtificialInputs(box_margin=0.05),
        "readout": NOMUReadout(l_min="nll", l_max="nll", c="nll"),
        "epochs": 400,
        "early_stopping_patience": None,
        "validation": 0.2,
        "training": Training(schedule="constant"),
    }
    # A toy function of one feature has a grid (footnote 21).
    grid = {"artificial__kind": "grid", "artificial__n": 128}
    experiments: dict[str, tuple[dict, dict]] = {
        "toy": (toy, grid if n_features == 1 else {}),
        # Appendix B.2.5
        "testbed": (
            {**toy, "readout": NOMUReadout(l_min=0.1, l_max=1.0, c=1.0)},
            {"artificial__n": 100 * n_features},
        ),
        # Section 4.1.3 and appendix B.2.6
        "solar": (
            {**toy, "loss": NOMULoss(pi_exp=0.05, stable=False, l2=1e-19, side_l2=1e-19)},
            {**grid, "readout__l_min": 0.01, "epochs": 2**14},
        ),
        "uci": (uci, {}),
        "uci_gap": (uci, {"loss__pi_sqr": 0.01, "loss__pi_exp": 0.1, "epochs": 40}),
        # Appendix B.3.1
        "bayesopt": (
            {**toy, "artificial": ArtificialInputs(n=500, box=[(-1.0, 1.0)] * n_features)},
            {"loss__pi_sqr": 1.0, "readout__l_min": 1e-6},
        ),
    }
    if name not in experiments:
        raise ValueError(f"`name` must be one of {list(experiments)}. Got {name!r}.")
    settings, changes = experiments[name]
    return {**settings, **changes}
