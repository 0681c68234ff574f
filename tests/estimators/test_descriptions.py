"""Parameters are described such that a search is continued by the same one, and by no other."""

import dataclasses
import functools
import itertools
import json
import threading

import numpy as np
import pandas as pd
import pytest
from processes import run_python
from sklearn.compose import make_column_transformer
from sklearn.preprocessing import OneHotEncoder

from skuq.search._fingerprint import describe


def priced(price):
    return lambda trial: trial.score + price * trial.n_weights


def recursive(factor):
    def factorial(n):
        return 1 if n < 1 else factor * n * factorial(n - 1)

    return factorial


class Priced:
    def __init__(self, price):
        self.price = price

    def score(self, trial):
        return self.price * trial.score


@dataclasses.dataclass
class Data:
    rows: object
    names: frozenset = frozenset("abcd")


def transformer(rare):
    """A long one, of whose display scikit-learn leaves the middle out."""
    steps = [(OneHotEncoder(min_frequency=9), [f"column {k}"]) for k in range(20)]
    steps[9][0].set_params(min_frequency=rare)
    return make_column_transformer(*steps)


MADE = {
    "closure": priced,
    "default": lambda k: eval("lambda t, *, price=price: price * t", {"price": k}),
    "code": lambda k: eval(f"lambda t: {k} * t"),
    "name": lambda k: eval(f"lambda t: {('min', 'max')[k - 1]}(t)"),
    "signature": lambda k: eval(f"lambda {'*' * k}t: t"),
    "partial": lambda k: functools.partial(priced, k),
    "cached": lambda k: functools.lru_cache(priced(k)),
    "decorated": lambda k: functools.wraps(priced)(priced(k)),
    "recursive": recursive,
    "method": lambda k: Priced(k).score,
    "object": Priced,
    "object of functions": lambda k: Data(priced(k)),
    "generator": lambda k: np.random.RandomState(k),
    "sets": lambda k: functools.partial(priced, {"a", "b", k}),
    "array": lambda k: Data(np.repeat([1, k, 1], 1000)),
    "frame": lambda k: Data(pd.DataFrame({"a": np.repeat([1, k, 1], 1000), "b": "x"})),
    "class": lambda k: (Priced, Data)[k - 1],
    "transformer": transformer,
}


@pytest.mark.parametrize("kind", MADE)
def test_functions_and_objects_are_compared_by_the_values_they_use(kind):
    one, same, other = (describe(MADE[kind](k)) for k in (1, 1, 2))
    assert json.loads(json.dumps(one)) == one
    assert one == same != other


def test_values_that_a_function_encloses_are_told_apart():
    values = 1, 1.0, True, "1", 0.0, -0.0, min, max, np.exp, np.log, int, range(3), range(4)
    described = [json.dumps(describe(priced(value))) for value in values]
    for (one, first), (other, second) in itertools.combinations(zip(values, described), 2):
        assert first != second, (one, other)


def test_describe_ends_for_what_is_hard_to_describe():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    def shared(price):
        def low(t):
            return price * t

        for _ in range(40):  # 2 ** 40 descriptions, if each mention were one

            def low(t, one=low, other=low):
                return one(t) + other(t)

        return low

    one, other = Priced(None), Priced(None)
    one.price, other.price = other, one
    for value in (even, one, threading.Lock(), iter([1]), (n for n in [1]), np):
        json.dumps(describe(value))
        json.dumps(describe(priced(value)))
    assert describe(shared(1.0)) == describe(shared(1.0)) != describe(shared(2.0))


SCRIPT = """
from functools import partial
import numpy as np
from skuq.search._fingerprint import describe

def outer(k):
    def inner(t):
        return t + k
    return inner

class Kept:
    def __init__(self, names):
        self.names = names
    def __call__(self, t):
        return t in {'a', 'b'}

f = lambda t, k=2.0, s=frozenset('xyz'): t in {'a', 'b', 'c'} or outer(k)(t)
print(describe([outer, outer(3), f, partial(f, {'x', 'y'}, kept=Kept({'x', 'y', 'z'}))]))
"""


def test_a_function_is_the_same_in_another_process_until_it_is_edited(tmp_path):
    def said(script, seed="1"):
        path = tmp_path / "script.py"
        path.write_text(script)
        run = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
        return run_python(run, PYTHONHASHSEED=seed).stdout

    whole = said(SCRIPT)
    assert whole.count("digest") == 4 and said(SCRIPT, "2") == whole
    for old, new in [("t + k", "t - k"), ("{'a', 'b'}\n", "{'a'}\n")]:
        assert said(SCRIPT.replace(old, new)) != whole
    console = said(f"exec({SCRIPT!r})")  # without source
    assert console == said(f"exec({SCRIPT!r})", "2")
    assert console != said(f"exec({SCRIPT.replace('t + k', 't - k')!r})")
