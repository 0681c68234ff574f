"""NOMU: one network for a prediction and its model uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real

from sklearn.utils.validation import check_is_fitted

from skuq._params import HasMethods, Interval, StrOptions
from skuq._registry import saved_as
from skuq.estimators._base import UncertaintyRegressor, fits
from skuq.estimators._nomu_choice import chooses_readout
from skuq.estimators._nomu_paper import paper_settings
from skuq.estimators._nomu_readout import read_readout
from skuq.estimators._nomu_stack import fit_together
from skuq.networks import OPTIMIZERS
from skuq.networks._activations import ACTIVATIONS
from skuq.networks._nomu import READOUTS
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS, add_input_tags

#: Parameters in which models trained side by side may differ.
_STACKABLE_PARAMETERS = (
    "pi_sqr",
    "pi_exp",
    "c_exp",
    "learning_rate",
    "l_min",
    "l_max",
    "c",
    "random_state",
)


@saved_as("estimators.NOMURegressor", kind="estimator")
class NOMURegressor(UncertaintyRegressor):
    """One network with two outputs: a prediction f, and its model uncertainty r.

    r is trained to be zero at the training rows and large at artificial inputs, so that it grows
    away from the rows; it sees the features that f has learnt. NOMU is made for few rows with
    little noise, and for Bayesian optimisation.

    Parameters
    ----------
    hidden_units : int, sequence of int or "auto", default="auto"
        Number of units of each hidden layer of f. "auto" is (64, 64), enough to interpolate the
        rows, below 100 rows and with ``noise=0.0``, and (50,) otherwise.
    side_hidden_units : int or sequence of int, optional
        Number of units of each hidden layer of r; by default those of f.
    activation : str, default="relu"
        Activation of the hidden layers, by its Keras name.
    connect_layers : int, default=1
        Number of f's last hidden layers that r sees. 1 is the paper's architecture: the last one
        joins r's output layer. With 2 the one before it joins r's last hidden layer, and so on
        (Remark 3.1). With 0 r sees X only, so that it measures Euclidean distances.
    connect_gradient : bool, default=False
        Whether the loss of r also trains the weights of f: not in the paper (footnote 5), but in
        its code. True turns off ``early_stopping="auto"``. It has no effect if f is trained
        before r, or given.
    initial_range : float, optional
        Initial weights and biases are uniform between minus and plus this; 0.05 in the paper. By
        default the range is Glorot and Bengio's for the weights of each layer, which suits tables
        better.
    build_f : callable, optional
        ``build_f(input_shape, n_outputs) -> keras.Model``, which replaces `hidden_units`.
    build_r : callable, optional
        The same for `side_hidden_units`; its last layer of weights is replaced by one that also
        sees f's last hidden layer.
    pretrained : keras.Model or fitted regressor, optional
        Fitted model whose predictions are reproduced exactly; only r is trained. It gets the rows
        as `preprocess` encodes them, so give it numbers without gaps, and `fit` the rows that it
        was trained on. r sees the last hidden layer of a Keras model, but only X with
        any other regressor. `clone` resets an estimator: for cross-validation and searches wrap
        it in `sklearn.frozen.FrozenEstimator`.
    noise : {"learned"}, float or callable, optional
        Standard deviation of the noise, in units of y: a number, or a function ``noise(X) ->
        (n,)`` of an array. "learned" first trains f with a Gaussian likelihood, then r on top of
        it (appendix C.1). By default noise is not modelled, and widens the band everywhere. 0.0
        says that there is none: f is to interpolate its rows, however many, and the band closes
        there.
    bounds : {"symmetric", "asymmetric"}, default="symmetric"
        "asymmetric" trains one r upwards and another downwards (appendix C.2).
    pi_sqr : float, default=0.1
        Weight of the loss that keeps r small at the rows; a larger one makes the band narrower
        there. With ``noise=0.0`` it counts ten times.
    pi_exp : float, default=0.01
        Weight of the loss that raises r everywhere; a larger one makes the band wider.
    c_exp : float, default=30.0
        Factor in the exponent of that loss; a larger one makes a wide band narrower, and a narrow
        one wider.
    stable_loss : bool, default=True
        Whether to use the form of the loss with bounded gradients (Eq. 53-55). Both forms are
        equal for r in [0, 1].
    artificial_inputs : {"uniform", "grid"}, callable or array-like, default="uniform"
        Inputs at which r is raised, in units of X: "uniform" draws them in the box for every step,
        "grid" places them on a grid in it, a function ``(n, rng) -> (n, n_features)`` is called
        for every step, and a table gives its rows, for example unlabelled ones when data lie near
        a manifold (Remark 3.4).
    n_artificial : int, default=100
        Number of artificial inputs of each step; the maximum number for a grid.
    box : array-like of shape (n_features, 2), optional
        Bounds of artificial inputs that are uniform or on a grid, in units of X. By default the
        range of the rows, widened by `box_margin`.
    box_margin : float or "auto", default="auto"
        Share of each range that is added on either side. "auto" is 0.05, and more below 61 rows:
        three times the mean distance ``1 / (n_rows - 1)`` between uniform rows, at most 1.
    l2 : float, default=1e-9
        Factor of the penalty ``l2 * sum(w**2)`` on weights and biases, except those of r's hidden
        layers.
    side_l2 : float, default=1e-4
        Factor of the penalty on r's hidden layers. A larger one makes r depend more on f's
        features (desideratum D4), most of all with the paper's initial weights.
    optimizer : str, default="adam"
        Keras' name of the optimiser: sgd, rmsprop, adagrad, adam, adadelta, adamax or nadam.
    learning_rate : float, default=0.01
        Learning rate of the optimiser.
    batch_size : int or None, default=100
        Number of rows of a batch; None takes all rows. The loss is a sum over rows: with larger
        batches the rows count more against the artificial inputs.
    schedule : {"auto", "constant", "cosine"}, default="auto"
        How the learning rate changes from step to step: not at all, or falling to a hundredth
        along half a cosine. "auto" lets it fall below 100 rows and with ``noise=0.0``, unless f
        stops early.
    epochs : int, optional
        Number of epochs; all are run unless `early_stopping` ends them, and the weights of the
        smallest training loss are kept. By default 400, or as many as make 2000 steps (1000 below
        100 rows and with ``noise=0.0``).
    early_stopping : bool or "auto", default="auto"
        Whether to train f first until held-out rows improve no more, and then r on top of the
        frozen f for all `epochs`: noisy tables need it. f stops after an eighth of `epochs`
        without improvement, and is finally trained on all rows for the best number of epochs.
        "auto" does so with 100 rows or more, unless ``noise=0.0``; False, as in the paper, trains
        both parts together for all epochs.
    clip_norm : float or None, default=1.0
        Maximum norm of a gradient; None does not clip.
    refine : bool, default=False
        Whether to train f first and minimise its squared error further in double precision: by the
        Levenberg-Marquardt method, or L-BFGS above 1500 values of y. f then meets data without
        noise about a thousand times more closely. It needs ``noise=0.0``.
    readout : {"exponential", "linear"}, default="exponential"
        Function from r to a standard deviation: Eq. 2, or the piecewise linear one of Remark 3.2,
        which mixed integer programmes can represent.
    l_min, l_max : float, "auto" or "nll", default="auto"
        Minimum and maximum standard deviation of the model before the factor c, in units of the
        standardised y. "nll" chooses the pair of largest likelihood at held-out rows from a grid.
        So does "auto" if at least 30 rows are held out. With fewer, and with ``noise=0.0``, l_max
        is 2 and l_min the root mean square error of f at its own training rows, at least 0.005.
    c : float, "auto" or "nll", default="auto"
        Factor of the model's standard deviation. "nll" maximises the likelihood of held-out rows.
        "auto" widens the band if few rows are held out: it adds two variances, the one at the c of
        "nll" and a prior one, whose average over artificial inputs is the variance of y times
        (8 / number of held-out rows) squared, at most 1.
    validation_fraction : float, default=0.2
        Share of the rows that is held out to choose c, l_min and l_max. If all three are numbers,
        nothing is held out.
    cv : int, "auto", "gaps" or None, default="auto"
        Number of folds that are held out in turn, instead of one share of the rows. "auto" takes
        10 folds (at most one for each row) below 30 rows, 5 below 500 rows, and one share with
        more. None always holds out one share. "gaps" holds out 5 folds and also the middle third
        of the rows along each of 5 features drawn at random: it is for predictions far from all
        rows. It takes no `groups`.
    refit : bool, default=True
        Whether to train once more on all rows after everything has been chosen.
    standardize : bool, default=True
        Whether to standardise X and y. False leaves them in their units, for data in [-1, 1] as in
        the paper.
    preprocess : "auto", transformer or None, default="auto"
        How X becomes numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns,
        at most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only. Artificial inputs are drawn in the preprocessed columns, where those
        of indicator columns are between 0 and 1. `box`, `pretrained`, and functions for
        `artificial_inputs` and `noise`, also refer to the preprocessed columns.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

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
        If `build_f` or `build_r` gives no usable model.
    ValueError
        If l_max is not above l_min, the box holds no row, or `pretrained` does not fit X.

    See Also
    --------
    DeepEnsembleRegressor : Several networks that learn noise; better for noisy tables.
    MCDropoutRegressor : One network whose uncertainty hardly narrows at the data.

    Notes
    -----
    The epistemic part of `predict_uncertainty` is c times the model's standard deviation. Without
    `noise` the aleatoric part is zero, and noise in the data leads to larger l_min and c.

    References
    ----------
    J. Heiss, J. Weissteiner, H. Wutte, S. Seuken, J. Teichmann. "NOMU: Neural
    Optimization-based Model Uncertainty", ICML 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import NOMURegressor
    >>> X = np.array([[-1.0], [-0.5], [0.0], [0.8]])
    >>> model = NOMURegressor(c=1, l_min=0.001, l_max=2, epochs=200, random_state=0)
    >>> _, std = model.fit(X, X.ravel() ** 2).predict([[0.0], [0.4]], return_std=True)
    >>> bool(std[0] < std[1])
    True
    """

    _parameter_constraints: dict = {
        "hidden_units": [
            "array-like",
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "side_hidden_units": ["array-like", Interval(Integral, 1, None, closed="left"), None],
        "activation": [StrOptions({*ACTIVATIONS, "swish"})],
        "connect_layers": [Interval(Integral, 0, None, closed="left")],
        "connect_gradient": ["boolean"],
        "initial_range": [Interval(Real, 0, None, closed="neither"), None],
        "build_f": [callable, None],
        "build_r": [callable, None],
        "pretrained": [HasMethods(["predict"]), None],
        "noise": [StrOptions({"learned"}), Interval(Real, 0, None, closed="left"), callable, None],
        "bounds": [StrOptions({"symmetric", "asymmetric"})],
        "pi_sqr": [Interval(Real, 0, None, closed="left")],
        "pi_exp": [Interval(Real, 0, None, closed="left")],
        "c_exp": [Interval(Real, 0, None, closed="left")],
        "stable_loss": ["boolean"],
        "artificial_inputs": [StrOptions({"uniform", "grid"}), callable, "array-like"],
        "n_artificial": [Interval(Integral, 1, None, closed="left")],
        "box": ["array-like", None],
        "box_margin": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "l2": [Interval(Real, 0, None, closed="left")],
        "side_l2": [Interval(Real, 0, None, closed="left")],
        "optimizer": [StrOptions(set(OPTIMIZERS))],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "schedule": [StrOptions({"auto", "constant", "cosine"})],
        "epochs": [Interval(Integral, 1, None, closed="left"), None],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "clip_norm": [Interval(Real, 0, None, closed="neither"), None],
        "refine": ["boolean"],
        "readout": [StrOptions(set(READOUTS))],
        "l_min": [StrOptions({"auto", "nll"}), Interval(Real, 0, None, closed="left")],
        "l_max": [StrOptions({"auto", "nll"}), Interval(Real, 0, None, closed="neither")],
        "c": [StrOptions({"auto", "nll"}), Interval(Real, 0, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "cv": [Interval(Integral, 2, None, closed="left"), StrOptions({"auto", "gaps"}), None],
        "refit": ["boolean"],
        "standardize": ["boolean"],
        **PREPROCESS_CONSTRAINTS,
        "random_state": ["random_state"],
        "verbose": ["verbose", None],
    }

    def __init__(
        self,
        hidden_units="auto",
        *,
        side_hidden_units=None,
        activation="relu",
        connect_layers=1,
        connect_gradient=False,
        initial_range=None,
        build_f=None,
        build_r=None,
        pretrained=None,
        noise=None,
        bounds="symmetric",
        pi_sqr=0.1,
        pi_exp=0.01,
        c_exp=30.0,
        stable_loss=True,
        artificial_inputs="uniform",
        n_artificial=100,
        box=None,
        box_margin="auto",
        l2=1e-9,
        side_l2=1e-4,
        optimizer="adam",
        learning_rate=0.01,
        batch_size=100,
        schedule="auto",
        epochs=None,
        early_stopping="auto",
        clip_norm=1.0,
        refine=False,
        readout="exponential",
        l_min="auto",
        l_max="auto",
        c="auto",
        validation_fraction=0.2,
        cv="auto",
        refit=True,
        standardize=True,
        preprocess="auto",
        random_state=None,
        verbose=None,
    ):
        self.hidden_units = hidden_units
        self.side_hidden_units = side_hidden_units
        self.activation = activation
        self.connect_layers = connect_layers
        self.connect_gradient = connect_gradient
        self.initial_range = initial_range
        self.build_f = build_f
        self.build_r = build_r
        self.pretrained = pretrained
        self.noise = noise
        self.bounds = bounds
        self.pi_sqr = pi_sqr
        self.pi_exp = pi_exp
        self.c_exp = c_exp
        self.stable_loss = stable_loss
        self.artificial_inputs = artificial_inputs
        self.n_artificial = n_artificial
        self.box = box
        self.box_margin = box_margin
        self.l2 = l2
        self.side_l2 = side_l2
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.schedule = schedule
        self.epochs = epochs
        self.early_stopping = early_stopping
        self.clip_norm = clip_norm
        self.refine = refine
        self.readout = readout
        self.l_min = l_min
        self.l_max = l_max
        self.c = c
        self.validation_fraction = validation_fraction
        self.cv = cv
        self.refit = refit
        self.standardize = standardize
        self.preprocess = preprocess
        self.random_state = random_state
        self.verbose = verbose

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
            Parameters that differ from those settings, by name.

        Examples
        --------
        >>> NOMURegressor.from_paper("toy", epochs=100).hidden_units
        (1024, 1024, 1024)
        """
        return cls(**{**paper_settings(name, n_features), **changes})

    @fits
    def fit(self, X, y, sample_weight=None, *, validation_data=None, groups=None):
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
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            Rows to choose by, instead of a part of X; without effect if nothing is to be chosen.
            Needed with `pretrained`, which has been trained on the rows of X.
        groups : array-like of shape (n,), optional
            Groups of rows; a group is never split between training and validation.

        Returns
        -------
        self
        """
        fit_together([self], X, y, sample_weight, validation_data, groups)
        return self

    def fit_many(self, X, y, settings, sample_weight=None, *, validation_data=None, groups=None):
        """Fit several models that differ in a few parameters, in one program.

        Parameters
        ----------
        X, y, sample_weight, validation_data, groups :
            As in `fit`.
        settings : iterable of dict
            Parameters in which each model differs from this one: any of pi_sqr, pi_exp, c_exp,
            learning_rate, l_min, l_max, c and random_state. For example
            ``sklearn.model_selection.ParameterGrid({"pi_exp": [0.001, 0.01, 0.1]})``.

        Returns
        -------
        list of NOMURegressor
            Fitted, each as by its own `fit`, up to rounding. (A RandomState instance is shared
            and gives each model another seed.)
        """
        settings = list(settings)
        wrong = [setting for setting in settings if not isinstance(setting, Mapping)]
        if wrong:
            raise TypeError(f"`settings` must hold dictionaries, one a model. Got {wrong[0]!r}.")
        names = {name for setting in settings for name in setting}
        unknown = sorted(names - set(_STACKABLE_PARAMETERS))
        if not settings or unknown:
            raise ValueError(
                f"`settings` must hold dictionaries of {', '.join(_STACKABLE_PARAMETERS)}. "
                f"Got {unknown or 'none'}."
            )
        # Not clones: those of a fitted `pretrained` would have forgotten what it learnt.
        params = self.get_params(deep=False)
        models = [type(self)(**{**params, **setting}) for setting in settings]
        for model in models:
            model._validate_params()
        for chooses in (True, False):  # models that choose are trained in another way
            alike = [model for model in models if chooses_readout(model) == chooses]
            if alike:
                fit_together(alike, X, y, sample_weight, validation_data, groups)
        return models

    def readout_weights(self):
        """Return the network as affine functions of ReLU units, for a mixed integer programme.

        The model must have one output, ``readout="linear"``, ``activation="relu"`` and symmetric
        bounds.

        Returns
        -------
        skuq.bayesopt.ReluReadout
            ``readout(X)`` gives mean and epistemic standard deviation, as the model does.

        Raises
        ------
        ValueError
            If the model has other settings, or layers that are not dense, or `pretrained`.
        """
        check_is_fitted(self)
        return read_readout(self.fitted_)

    @property
    def c_(self):
        """Factor of the model's standard deviation."""
        return self.fitted_.readout.c

    @property
    def l_min_(self):
        """Smallest standard deviation of the standardised y, before the factor c."""
        return self.fitted_.readout.l_min

    @property
    def l_max_(self):
        """Largest standard deviation of the standardised y, before the factor c."""
        return self.fitted_.readout.l_max

    @property
    def noise_factor_(self):
        """Factor of the noise's standard deviation."""
        return self.fitted_.readout.noise_factor

    @property
    def member_(self):
        """The trained network as data."""
        return self.fitted_.network.member

    @property
    def mean_member_(self):
        """Network of f as data, if it was trained before r; else None."""
        return self.fitted_.network.mean_member

    @property
    def preprocessor_(self):
        """Fitted transformer of X, or None."""
        return self.fitted_.inputs.preprocessor

    def __sklearn_tags__(self):
        return add_input_tags(super().__sklearn_tags__(), self.preprocess)
