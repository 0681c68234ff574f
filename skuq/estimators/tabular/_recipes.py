"""All numbers that were tuned for the recommended estimators of tables, as data.

Each group names its source. Headings in quotes are those of docs/methods/tabular.md. RealMLP is the
network of D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
and boosted trees on tabular data", NeurIPS 2024.
"""

from __future__ import annotations

from typing import Any

from skuq.networks._space import Categorical, Integer, Real

#: Rows from which a table has many: then wider networks are better, and classes have other recipes.
MANY_ROWS = 4_000  # "Searched": width
FEWEST_ROWS_OF_CLASSES, FEW_ROWS_OF_CLASSES = 200, 2_000  # "Classes: kinds of members, mixed"

# ------------------------------------------------------------------------- training of a network
# "The network" and RealMLP's Table A.1: optimiser, schedules, and rates of the parts.

#: Fields of the training recipe that no decision changes.
TRAINING: dict[str, Any] = {
    "optimizer": "adam",
    "beta_2": 0.95,
    "schedule": "coslog4",
    "reduce_lr_patience": None,
    "weight_decay_schedule": "flat-cosine",
    "dropout_schedule": "flat-cosine",
    "steps_per_epoch": 512,  # an epoch of a large table trains on a part of its rows
    "early_stopping_patience": "cycle",
    # On few rows the best epochs of single members would be those of chance, and the rows on which
    # they validate would seem too easy to the selection and the calibration.
    "keep": "best-jointly",
}
#: Factors of the learning rate, by layer: of embeddings, and of networks with hidden layers.
EMBEDDING_RATES = (("embedding", 0.1),)
HIDDEN_RATES = (("scale", 6.0), ("activation_*", 0.1), ("*/bias", 0.1))

# "Large tables and limited time": batches of about an eighth of the rows, a power of two in this
# range, and the number of training steps, from which that of epochs follows.
BATCHES_PER_EPOCH, BATCH_SIZES = 8, (32, 256)
STEPS_OF_FEW_ROWS, STEPS_OF_MANY_ROWS, STEPS_OF_A_ROW = 6_000, 5_000, 0.035
MOST_EPOCHS = 512
#: Early stopping of classes, in trainings that may have more epochs than these.
LONG_TRAINING, PATIENCE = 128, 64

# ------------------------------------------------------------------------- decisions and recipes
# "Searched" has the table of these decisions.

#: Defaults of decisions that depend on the rows: few and many rows, numbers and classes.
WIDTHS = {"few": 64, "many": 128}
DROPOUTS = {"numbers": 0.0, "classes": 0.1}
N_LAYERS, EMBEDDING_DIM = 3, 4

#: Decisions about the training.
LEARNING_RATE = Real("learning_rate", 0.02, 0.3, log=True, default=0.1)
WEIGHT_DECAY = Real("weight_decay", 1e-3, 0.2, log=True, default=0.02)
FREQUENCY_SCALE = Real("frequency_scale", 0.02, 10.0, log=True, default=0.3)
#: The same of classes, whose defaults are those of the first kind.
DECAY_OF_CLASSES = Real("weight_decay", 1e-3, 3.0, log=True, default=0.02)
EPOCHS_OF_CLASSES = Integer("epochs", 32, MOST_EPOCHS, log=True, default=MOST_EPOCHS)
#: Losses of networks that predict mixtures of normals: the CRPS gives the better means where there
#: is little noise, the likelihood the better shapes ("Heads and weights").
LOSS = Categorical("loss", ("crps", "nll"))

#: Number of trials of random search that share an architecture. A small table takes two to seven
#: times as long to compile as to train.
TRAININGS_OF_AN_ARCHITECTURE = 3

# Changes of the default for numbers, from which searches start. Which one is best differs from
# table to table (docs/results/equal_time.md, "What each part is worth").
RECIPES_OF_MANY_ROWS: tuple[dict, ...] = (
    {"loss": "nll"},
    {},
    {"loss": "nll", "frequency_scale": 3.0},
    {"frequency_scale": 3.0},
    {"embedding": "piecewise-linear"},
    {"residual": True, "dropout": 0.1},
    {"embedding": "none"},
)
_ONE_LAYER = {"n_layers": 1, "loss": "nll"}
# The first two are the recommended ensemble, and the next two share their program.
RECIPES_OF_FEW_ROWS: tuple[dict, ...] = (
    {"loss": "nll"},
    {},
    {"loss": "nll", "frequency_scale": 3.0},
    {"frequency_scale": 3.0},
    {"loss": "nll", "embedding": "none"},
    {"embedding": "none"},
    {"n_layers": 1, "activation": "relu", "embedding": "none"}
    | {"learning_rate": 0.035, "weight_decay": 0.1},
    {"n_layers": 2, "width": 32, "activation": "relu", "embedding_dim": 8}
    | {"learning_rate": 0.06, "weight_decay": 0.01, "frequency_scale": 2.0},
    _ONE_LAYER
    | {"learning_rate": 0.022, "weight_decay": 0.12, "frequency_scale": 1.1, "dropout": 0.05},
    _ONE_LAYER | {"learning_rate": 0.05, "weight_decay": 0.07, "dropout": 0.2},
)

# ----------------------------------------------------------------------------- kinds of members
# "Classes: kinds of members, mixed", and docs/results/rules.md.

#: How columns are embedded, and the lengths and decays of the training. Few rows need few epochs,
#: and a decay that leaves no noise learnt; some classes can be told apart exactly, with little
#: decay, which is enough for many rows.
CLASS_EMBEDDINGS: tuple[dict, ...] = (
    {"frequency_scale": 0.3},
    {"embedding": "none"},
    {"frequency_scale": 3.0},
)
CLASS_TRAININGS_OF_FEWEST_ROWS: tuple[dict, ...] = (
    {"epochs": 128, "weight_decay": 0.1},
    {"epochs": 64, "weight_decay": 1.0},
)
CLASS_TRAININGS: tuple[dict, ...] = (
    {"epochs": 64, "weight_decay": 0.3},
    {"epochs": 256, "weight_decay": 0.02},
)
#: Further recipes of classes, which searches try.
OTHER_CLASS_RECIPES: tuple[dict, ...] = (
    {"n_layers": 0, "embedding": "none", "weight_decay": 0.1},
    {"residual": True},
    {"embedding": "piecewise-linear"},
)
#: Kinds of training of mixtures of normals ("Heads and weights").
MIXTURE_KINDS: tuple[dict, ...] = ({"loss": "crps"}, {"loss": "nll"})

N_MEMBERS = 8  # of numbers
#: Share of the rows that each member holds out, up to so many rows ("Large tables").
VALIDATION, MOST_VALIDATION_ROWS = 0.1, 10_000
#: Members of each kind of classes: on few rows every row validates, in folds, with more some do.
N_FOLDS, N_TENTHS = 5, 3
FEWEST_FOLDED = 10  # rows, or groups

# ------------------------------------------------------------- weights of kinds, and calibration
# "Heads and weights", "Calibration by rows that members have not seen", "Classes".

MOST_CALIBRATION_ROWS = 5_000  # drawn at random if there are more

# ------------------------------------------------------------------------------ transforms of y
# "Transformed targets": standard deviation of heavy tails, in those that a normal with the same
# middle half has. In units of it most values lie so close together that networks tell them apart
# late or never. It is 0.7 to 1.9 in 17 tables.
HEAVY_TAILS = 2.5
FEWEST_ROWS_WITH_TAILS = 20  # with fewer, one row decides

# ------------------------------------------------------------------------- linear part of networks
FEWEST_RIDGE_ROWS, MOST_RIDGE_ROWS = 20, 3000
MOST_COMPARED = 500  # rows on which regressions are compared, in a tenth of a second
#: Penalties of ridge regression, as powers of ten of the mean eigenvalue: range, number.
PENALTY_POWERS, N_PENALTIES = (-8, 4), 37
SMALLEST_UNIT = 1e-4  # of residuals, in standard deviations of y, as float32 resolves it
JITTER = 1e-10  # added to a kernel, whose rows may repeat
EXACT = 1e-8  # variance of errors that are none, in variances of y

# ------------------------------------------------------------------------- searches of the space
# docs/results/equal_time.md, "What each part is worth".

#: Trials side by side: four take two thirds of the wall time of one by one, 16 no less.
PACK_SIZE = 4
N_NES_TRIALS = 20  # default number of trials of NES, each of which trains a network for each fold
