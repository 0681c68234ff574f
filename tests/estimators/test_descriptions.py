"""Parameters are described such that a search is continued by the same one, and by no other."""

import dataclasses
import decimal
import functools
import itertools
import json
import math
import operator
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from processes import run_python
from sklearn.compose import make_column_transformer
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from tiers import cases

from skuq.estimators._searches._descriptions import describe


def priced(price):
    return lambda trial: trial.score + price * trial.n_weights


def times(factor):
    def decorate(function):
        @functools.wraps(function)
        def multiplied(trial):
            return factor * function(trial)

        return multiplied

    return decorate


def decorated(factor):
    @times(factor)
    def objective(trial):
        return trial.score

    return objective


def recursive(n_last):
    def factorial(n):
        return 1 if n < n_last else n * factorial(n - 1)

    return factorial


def signature(text):
    return eval(f"lambda {text}: 0")


class Priced:
    """An objective with a parameter, and a counter."""

    def __init__(self, price):
        self.price, self.n_calls = price, 0

    def score(self, trial):
        return self.price * trial.score

    def __call__(self, trial):
        return self.score(trial)


class Kept:
    """A parameter under another name, a cached property and what a method keeps."""

    def __init__(self, price, calls=None):
        self._set(price)
        self.calls = calls

    def _set(self, price):
        self._price = price

    @functools.cached_property
    def table(self):
        return 2 * self._price

    def penalty(self, n):
        self.last, self.best = n, self.table
        return self._price * n


class Slotted:
    __slots__ = ("price",)

    def __init__(self, price):
        self.price = price

    def __call__(self, trial):
        return self.price


@dataclasses.dataclass
class Data:
    rows: object
    names: frozenset = frozenset("abcd")

    def __call__(self, trial):
        return trial.score


def enclosed(value):
    return lambda trial: value


LONG = np.ones(3000), np.r_[np.ones(1000), np.zeros(1000), np.ones(1000)]
MADE = {
    "closure": priced,
    "partial": lambda price: functools.partial(priced, price),
    "cached": lambda price: functools.lru_cache(functools.lru_cache(priced(price))),
    "enclosed partial": lambda price: priced(functools.partial(pow, price)),
    "decorated": decorated,
    "named as NumPy's": lambda price: functools.wraps(np.mean)(priced(price)),
    "vectorized": lambda price: np.vectorize(priced(price)),
    "keyword": lambda k: eval("lambda t, *, price=price: price * t", {"price": k}),
    "recursive": recursive,
    "method": lambda price: Priced(price).score,
    "callable": Priced,
    "generator": lambda price: np.random.RandomState(int(price)),
    "new generator": lambda price: np.random.default_rng(int(price)),
    "sets": lambda price: functools.partial(priced, {"a", "b", price}),
    "enclosed method": lambda k: enclosed(Kept(k).penalty),
    "kept under another name": Kept,
    "slots": Slotted,
    "long array": lambda k: Data(LONG[k - 1]),
    "frame": lambda k: Data(pd.DataFrame({"a": LONG[k - 1], "b": "x"})),
    "enclosed series": lambda k: enclosed(pd.Series(LONG[k - 1])),
    "columns": lambda k: Data(pd.DataFrame({"ab"[k - 1]: [1.0]})),
    "function of an object": lambda k: Data(enclosed(k)),
    "nested": lambda k: enclosed(Data(Data(Slotted(k)))),
    "list": lambda k: Data([1, k]),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("with_code", [True, False])
def test_functions_and_objects_are_compared_by_the_values_they_use(kind, with_code):
    one, same, other = (describe(MADE[kind](k), with_code=with_code) for k in (1, 1, 2))
    assert json.loads(json.dumps(one)) == one
    assert one == same
    if kind != "recursive" or with_code:  # its only number is in its code
        assert one != other


VALUES = [
    *(min, max, math.exp, math.log, np.exp, np.log, str, int, np.float32, np.float64),
    *(operator.itemgetter(0), operator.itemgetter(1), operator.attrgetter("a")),
    *(np.str_("a"), np.str_("b"), np.datetime64("2020"), np.datetime64("2021")),
    *(range(3), range(4), slice(1), slice(2), (1,), (2,), frozenset({1, 2}), frozenset({1, 3})),
    *(decimal.Decimal("0.1"), decimal.Decimal("0.2"), Fraction(1, 3), Fraction(2, 3)),
    *(1, 1.0, True, "1", 0.0, -0.0, priced(1), priced(2)),
    *(np.vectorize(priced(3)), np.vectorize(priced(4))),
    *(functools.partial(max, 1), functools.partial(min, 1)),
]


def test_all_values_that_a_function_uses_are_told_apart():
    described = [json.dumps(describe(enclosed(value))) for value in VALUES]
    for (one, first), (other, second) in itertools.combinations(zip(VALUES, described), 2):
        assert first != second, (one, other)


def test_describe_tells_long_transformers_apart():
    def transformer(rare):
        steps = [(OneHotEncoder(min_frequency=9), [f"column {k}"]) for k in range(20)]
        steps[9][0].set_params(min_frequency=rare)
        return make_column_transformer(*steps)

    one, same, other = transformer(1), transformer(1), transformer(3)
    assert repr(one) == repr(other)  # scikit-learn leaves the middle out
    assert describe(one) == describe(same) != describe(other)


@cases(
    "one, other",
    ("t", "*t"),
    ("*t", "**t"),
    ("t, *, a, b", "t, *, b, a"),
    ("t, *, a=1, b=2", "t, *, b=1, a=2"),
    ("t, a=1", "t, *, a=1"),
)
def test_signatures_are_told_apart(one, other):
    assert describe(signature(one))[1:] != describe(signature(other))[1:]


def test_code_counts_unless_it_is_left_out():
    calls = (lambda self, trial: 2 * trial), (lambda self, trial: 3 * trial)
    codes = [type("Multiplied", (), {"__call__": call})() for call in calls]
    for made in (lambda one: one, lambda one: one.__call__):
        for with_code in (True, False):
            first, second = (describe(made(one), with_code=with_code) for one in codes)
            assert (first == second) == (not with_code)


def test_docstrings_comments_and_names_of_variables_do_not_count():
    plain = "def f(t):\n    a = 'x'\n    def g(u): return u\n    return g(t) + 1"
    other = plain.replace("a =", "'''Explain.'''\n    # a comment\n    b =")
    other = other.replace("return u", "\n        '''Explain, too.'''\n        return u")
    functions = []
    for text in (plain, other, plain.replace("+ 1", "+ 2"), plain.replace("'x'", "'y'")):
        exec(text, names := {"__name__": "__main__"})
        functions.append(describe(names["f"])[1:])
    assert functions[0] == functions[1]
    assert functions[0] not in functions[2:]


def test_functions_that_share_functions_are_described_once():
    def chain(price):
        def low(t):
            return price * t

        for _ in range(40):  # 2 ** 40 descriptions, if each mention were one

            def low(t, one=low, other=low):
                return one(t) + other(t)

        return low

    assert describe(chain(1.0)) == describe(chain(1.0)) != describe(chain(2.0))

    one, two = priced(1), priced(2)
    pairs = [lambda t, a=a, b=b: a(t) + b(t) ** 2 for a, b in ((one, one), (one, two))]
    assert describe(pairs[0])[1:] != describe(pairs[1])[1:]


def test_what_changes_while_a_function_is_used_does_not_count():
    calls, n_calls = [], 0

    def objective(trial):
        nonlocal n_calls
        n_calls += 1
        calls.append(trial)
        return n_calls

    counted, kept = Priced(1.0), Kept(2.0)
    values = objective, counted, counted.score, kept, kept.penalty, enclosed(kept)
    before = [describe(value) for value in values]
    objective(1)
    counted.n_calls += 1
    assert kept.penalty(3) == 6.0
    assert [describe(value) for value in values] == before


def test_describe_ends_for_what_is_hard_to_describe():
    class Agreeing:
        def __getattr__(self, name):
            if name == "__wrapped__":
                return self
            raise AttributeError(name)

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    one, other = Slotted(None), Slotted(None)
    one.price, other.price = other, one
    pairs = np.zeros(2, [("a", float), ("b", int)])
    for value in (pairs, np.array([object()]), Agreeing(), iter([1]), (n for n in [1]), even, one):
        json.dumps(describe(value))
        json.dumps(describe(priced(value)))
    json.dumps(describe(FunctionTransformer(np.ndarray.copy)))  # it belongs to no module


def test_the_description_of_a_function_is_that_of_another_process():
    code = (
        "from functools import partial\n"
        "import numpy as np\n"
        "from skuq.estimators._searches._descriptions import describe\n"
        "f = lambda t, k=2.0, s=frozenset('xyz'): t in {'a', 'b', 'c'} or (lambda u: u + k)(t)\n"
        "print(describe(f)[1:])\n"
        "class Kept:\n"
        "    def __init__(self, names): self.names = names\n"
        "names = {'x', 'y', 'z'}\n"
        "print(describe(partial(f, allowed=names, r=np.random.RandomState(0), kept=Kept(names))))"
    )
    said = {run_python(code, PYTHONHASHSEED=seed).stdout for seed in ("1", "2")}
    assert len(said) == 1
    assert "sha256" in said.pop()
