"""The public names, and their documentation."""

import importlib
import inspect

import pytest

import skuq

PACKAGES = [
    "bayesopt",
    "catalog",
    "datasets",
    "ensembles",
    "estimators",
    "metrics",
    "networks",
    "persistence",
    "plotting",
    "predictive",
    "search",
    "tables",
    "training",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_exist_and_have_docstrings(package):
    module = importlib.import_module(f"skuq.{package}")
    assert module.__all__
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing):
            assert inspect.getdoc(thing), f"skuq.{package}.{name} has no docstring"


ESTIMATORS = [
    "AutoDEUQClassifier",
    "AutoDEUQRegressor",
    "CalibratedUncertaintyClassifier",
    "CalibratedUncertaintyRegressor",
    "DeepEnsembleClassifier",
    "DeepEnsembleRegressor",
    "HQEnsembleSelector",
    "HyperDeepEnsembleClassifier",
    "HyperDeepEnsembleRegressor",
    "MCDropoutClassifier",
    "MCDropoutRegressor",
    "NEONRegressor",
    "NESClassifier",
    "NESRegressor",
    "NOMURegressor",
    "OperatorEnsembleRegressor",
    "TabularEnsembleClassifier",
    "TabularEnsembleRegressor",
    "UncertaintyPipeline",
]


def test_top_level_names():
    assert {*ESTIMATORS, "load", "make_pipeline", "save"} <= set(skuq.__all__)
    assert skuq.__version__


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_document_and_check_every_parameter(name):
    estimator = getattr(skuq, name)
    text = inspect.getdoc(estimator)
    parameters = inspect.signature(estimator).parameters
    assert not [parameter for parameter in parameters if parameter not in text]
    assert set(estimator._parameter_constraints) == set(parameters)
