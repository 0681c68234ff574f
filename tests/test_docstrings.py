"""Parameters of the same name are documented in the same words.

Each class spells out its own parameters, for the reader; these tests keep the copies equal.
"""

import inspect
from itertools import combinations

import pytest
from sklearn.utils._testing import assert_docstring_consistency

import skuq

numpydoc = pytest.importorskip("numpydoc.docscrape")

ESTIMATORS = [value for name in skuq.__all__ if hasattr(value := getattr(skuq, name), "get_params")]
NEURAL = ("DeepEnsemble", "HyperDeepEnsemble", "MCDropout")


def both(*names):
    return [getattr(skuq, name + kind) for name in names for kind in ("Regressor", "Classifier")]


GROUPS = {
    "AutoDEUQ": both("AutoDEUQ"),
    "NES": both("NES"),
    "CalibratedUncertainty": both("CalibratedUncertainty"),
    **{name: both(name) for name in NEURAL},
    "neural": both(*NEURAL),
    "searches": both("AutoDEUQ", "NES"),
    "functions": [skuq.NEONRegressor, skuq.OperatorEnsembleRegressor],
    "epistemic networks": [skuq.NEONRegressor, skuq.NOMURegressor],
    "NOMU": [skuq.MCDropoutRegressor, skuq.NOMURegressor],
}
# Parameters whose descriptions may differ within a group, and the reason.
_OUTPUTS = {
    "network": "outputs are means and standard deviations, or logits",
}
_SELECTION = {
    "selection_": "the unit of the loss is that of the standardised y in regressors",
}
DIFFERENT = {
    "AutoDEUQ": {
        **_SELECTION,
        "selection": "a callable gets normals or probabilities",
    },
    "NES": _SELECTION,
    "CalibratedUncertainty": {
        "estimator": "what predicts is another method",
        "method": "densities or probabilities",
    },
    "DeepEnsemble": {**_OUTPUTS, "validation_fraction": "classes are stratified"},
    "HyperDeepEnsemble": _OUTPUTS,
    "MCDropout": _OUTPUTS,
    "neural": {
        **_OUTPUTS,
        "dropout": "Monte Carlo dropout drops in predictions too",
        "l2": "in Monte Carlo dropout it is the prior",
        "learning_rate": "deep ensembles explain their setting 'auto' there",
        "loss": "deep ensembles have more losses",
        "n_members": "hyper deep ensembles choose up to that many",
        "validation_fraction": "hyper deep ensembles select on these rows",
        "weights_": "those of hyper deep ensembles are counts",
    },
    "searches": {
        **_SELECTION,
        "epochs": "NES trains all of them",
        "n_features_in_": "NES takes images",
        "n_jobs": "other strategies repeat exactly",
        "n_members": "AutoDEUQ chooses up to that many",
        "n_trials": "the papers' numbers",
        "preprocess": "NES takes images",
        "search": "the strategies by name",
        "selection": "the selections by name",
        "space": "the spaces by name",
        "validation": "folds are a default of AutoDEUQ",
    },
    "functions": {
        "n_parameters_": "an ensemble counts all members",
    },
    "epistemic networks": {
        "batch_size": "pairs or rows",
        "loss": "NOMU's loss has settings",
        "epochs": "regressors of functions can count steps",
        "pretrained": "what is trained on top",
        "refine": "NOMU refines its mean",
        "fitted_": "functions have query points",
        "standardize": "functions have query points",
    },
    "NOMU": {
        "batch_size": "NOMU's loss is a sum over rows",
        "early_stopping_patience": "NOMU's mean stops alone",
        "epochs": "NOMU's default makes enough steps",
        "loss": "NOMU's loss has settings",
        "network": "NOMU has two networks",
        "noise_std": "NOMU learns noise or takes a function",
        "preprocess": "NOMU draws artificial inputs",
    },
}
# Parameters whose type or default differs, but not the description.
OTHER_TYPES = {
    "CalibratedUncertainty": {"drift_", "estimator_"},
    "neural": {
        # Deep ensembles have a setting "auto" for each kind of network.
        "batch_size",
        "early_stopping_patience",
        "epochs",
        "members_",
        "schedule",
        "weight_decay",
    },
    "epistemic networks": {"learning_rate"},
    "NOMU": {"fitted_"},
}


def entries(estimator):
    """Documented parameters and attributes: ``{name: (type, description)}``."""
    document = numpydoc.NumpyDocString(inspect.getdoc(estimator))
    return {
        section: {
            entry.name: (entry.type, " ".join(entry.desc).strip()) for entry in document[section]
        }
        for section in ("Parameters", "Attributes")
    }


def shared(one, other, section):
    """Names documented by both."""
    return [name for name in entries(one)[section] if name in entries(other)[section]]


@pytest.mark.skipif(
    "ignore_types" not in inspect.signature(assert_docstring_consistency).parameters,
    reason="this version of scikit-learn cannot leave types out of the comparison",
)
@pytest.mark.parametrize("group", GROUPS)
def test_the_same_parameter_is_documented_in_the_same_words(group):
    for pair in combinations(GROUPS[group], 2):
        names = [
            [name for name in shared(*pair, section) if name not in DIFFERENT[group]]
            for section in ("Parameters", "Attributes")
        ]
        assert_docstring_consistency(
            pair,
            include_params=names[0],
            include_attrs=names[1],
            ignore_types=tuple(OTHER_TYPES.get(group, ())),
        )


@pytest.mark.parametrize("group", GROUPS)
def test_every_exception_is_needed(group):
    needed = {"description": set(), "type": set()}
    for pair in combinations(GROUPS[group], 2):
        for section in ("Parameters", "Attributes"):
            for name in shared(*pair, section):
                one, other = (entries(estimator)[section][name] for estimator in pair)
                if one[1] != other[1]:
                    needed["description"].add(name)
                elif one[0] != other[0]:
                    needed["type"].add(name)
    assert set(DIFFERENT[group]) <= needed["description"] | needed["type"]
    assert OTHER_TYPES.get(group, set()) <= needed["type"]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.__name__)
def test_every_parameter_is_documented(estimator):
    documented = [
        (name.strip(), description)
        for names, (_, description) in entries(estimator)["Parameters"].items()
        for name in names.split(",")
    ]
    assert sorted(name for name, _ in documented) == sorted(inspect.signature(estimator).parameters)
    assert all(description for _, description in documented)
    assert all(description for _, description in entries(estimator)["Attributes"].values())
