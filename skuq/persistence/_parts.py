"""The user's own functions and objects: files name them, and the user gives them again."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from sklearn.utils import Tags, TargetTags

from skuq._registry import is_supplied_by_user
from skuq.exceptions import MissingPartError


class MissingPart:
    """Placeholder for a function or object of the user that was not saved.

    Every use raises `MissingPartError`. Parts that a fitted estimator needs only to fit again may
    stay missing.

    Attributes
    ----------
    name : str
        Name of the part in ``skuq.load(path, parts={name: ...})``.
    description : str
        Class or function of the part.

    Examples
    --------
    >>> from skuq.persistence import MissingPart
    >>> MissingPart("space", "function build").name
    'space'
    """

    def __init__(self, name: str, description: str) -> None:
        self.name, self.description = name, description

    def __repr__(self) -> str:
        return f"MissingPart({self.name!r}, {self.description!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is MissingPart and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((self.name, self.description))

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        parameter, _, position = self.name.rpartition("__")
        if not position.isdigit():
            parameter = self.name
        raise MissingPartError(
            f"`{self.name}` ({self.description}) was not saved: give `{parameter}` to "
            f"skuq.load(path, parts={{{parameter!r}: ...}}), to `from_catalog` by its name, or to "
            "`set_params`."
        )

    def __sklearn_tags__(self) -> Tags:
        # An estimator asks its missing `preprocess` for them, also to predict with a fitted one.
        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    # Methods by which parameters are recognised as search spaces, oracles or estimators.
    decisions = build = recipe = __call__
    create_trial = end_trial = __call__
    fit = predict = predict_proba = transform = __call__


class PartNames:
    """Names of the user's parts in an estimator: of a parameter, or else of the part's place."""

    def __init__(self, estimator: Any) -> None:
        params = estimator.get_params(deep=True) if hasattr(estimator, "get_params") else {}
        # id -> (name, object): the object is kept alive, so that its id stays unique.
        self._named: dict[int, tuple[str, Any]] = {}
        for name in sorted(params, key=lambda name: (name.count("__"), name)):
            self._named.setdefault(id(params[name]), (name, params[name]))
        self._params = frozenset(self._named)

    def is_parameter(self, value: Any) -> bool:
        """Whether an object is the value of a parameter."""
        return id(value) in self._params

    def __call__(self, value: Any, where: Any) -> str:
        """Name the part at a place; fitted ``estimator_.x`` becomes ``estimator__x``."""
        if id(value) not in self._named:
            _, *steps = str(where).replace("[", ".").replace("]", "").split(".")
            self._named[id(value)] = "__".join(step.strip("_'") for step in steps), value
        return self._named[id(value)][0]


def description_of(value: Any) -> str:
    """Describe an object in words."""
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"function {value.__module__}.{value.__qualname__}"
    kind = type(value)
    return f"object of class {kind.__module__}.{kind.__qualname__}"


# Packages whose objects are data. They must not be taken for parts that the user gives again.
_DATA = ("pandas", "scipy", "skuq")
# The same, except for objects that can be called, such as `functools.partial`.
_DATA_OR_FUNCTIONS = sys.stdlib_module_names | {"numpy"}


def is_users(value: Any, is_parameter: bool) -> bool:
    """Whether an object counts as the user's own, to be given again on loading.

    Functions and classes do, those of skuq only as parameters. So do objects of classes of other
    packages.
    """
    kind = type(value)
    if is_supplied_by_user(kind):
        return True
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return is_parameter or not (getattr(value, "__module__", None) or "").startswith("skuq.")
    root = kind.__module__.partition(".")[0]
    return callable(value) if root in _DATA_OR_FUNCTIONS else root not in _DATA
