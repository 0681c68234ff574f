"""Choice of the tests in the quick suite; see ``pytest -m slow`` in the README."""

import pytest

slow = pytest.mark.slow


def slow_after(n, cases):
    """Cases to parametrise with: the first `n` are quick, the others slow."""
    cases = list(cases)
    rest = [
        pytest.param(*case.values, id=case.id, marks=[*case.marks, slow])
        if hasattr(case, "marks")
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=slow)
        for case in cases[n:]
    ]
    return [*cases[:n], *rest]
