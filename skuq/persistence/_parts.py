"""Parts that are the user's own: named in a file, and given again on loading."""

from __future__ import annotations

from skuq._registry import is_given_again
from skuq.exceptions import MissingPartError

__all__ = ["MissingPart", "PartNames", "description_of", "is_users"]


class MissingPart:
    """Stands where something of the user's stood that was not saved.

    It passes for whatever it was until it is used: every use raises `MissingPartError`. What a
    fitted estimator needs for fitting alone may stay missing.

    Attributes
    ----------
    name : str
        Of the part, as ``skuq.load(path, parts={name: ...})`` takes it.
    description : str
        What it was.
    """

    def __init__(self, name: str, description: str):
        self.name, self.description = name, description

    def __repr__(self):
        return f"MissingPart({self.name!r}, {self.description!r})"

    def __eq__(self, other):
        return type(other) is MissingPart and vars(other) == vars(self)

    def __hash__(self):
        return hash((self.name, self.description))

    def __call__(self, *args, **kwargs):
        raise MissingPartError(
            f"`{self.name}` ({self.description}) was not saved: give it to "
            f"skuq.load(path, parts={{{self.name!r}: ...}}), to `from_catalog` by its name, or to "
            "`set_params`."
        )

    # What parameters are checked for: search spaces, oracles, estimators.
    decisions = build = recipe = __call__
    create_trial = end_trial = __call__
    fit = predict = predict_proba = transform = __call__


class PartNames:
    """Names of the user's parts in an estimator: those of its parameters, or their places.

    Parameters
    ----------
    estimator : object
        With or without `get_params`.
    """

    def __init__(self, estimator):
        params = estimator.get_params(deep=True) if hasattr(estimator, "get_params") else {}
        # With the objects: an id is of one object for as long as that lives.
        self._named = {}
        for name in sorted(params, key=lambda name: (name.count("__"), name)):
            self._named.setdefault(id(params[name]), (name, params[name]))
        self._params = frozenset(self._named)

    def is_parameter(self, value) -> bool:
        return id(value) in self._params

    def __call__(self, value, where) -> str:
        """The name of the part at a place; fitted ``estimator_.x`` is ``estimator__x``."""
        if id(value) not in self._named:
            _, *steps = str(where).replace("[", ".").replace("]", "").split(".")
            self._named[id(value)] = "__".join(step.strip("_'") for step in steps), value
        return self._named[id(value)][0]


def description_of(value) -> str:
    """What an object is, in words."""
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"function {value.__module__}.{value.__qualname__}"
    kind = type(value)
    return f"object of class {kind.__module__}.{kind.__qualname__}"


# Whose data would be lost in silence if they counted as something that the user has.
_DATA = ("builtins", "numpy", "pandas", "scipy", "skuq")


def is_users(value, is_parameter: bool) -> bool:
    """Whether an object is something that the user can give again.

    Functions and classes are, those of skuq if they are parameters; so are objects of anybody
    else's classes.
    """
    kind = type(value)
    if is_given_again(kind):
        return True
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return is_parameter or not (getattr(value, "__module__", None) or "").startswith("skuq.")
    root = kind.__module__.partition(".")[0]
    return root not in _DATA or (root in ("builtins", "numpy") and callable(value))
