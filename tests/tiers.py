"""Choice of the tests in the quick suite; see docs/development/tests.md."""

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


def cases(names, *rows, quick=None, **options):
    """Parametrise a test with these rows, of which the first `quick`, or all, are quick."""
    rows = rows if quick is None else slow_after(quick, rows)
    return pytest.mark.parametrize(names, rows, **options)
