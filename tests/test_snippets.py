"""Every Python block of README and docs runs as typed, page by page, with warnings as errors.

What a block prints is compared with the output below it. SHORTER cuts long runs short, unless the
environment has SKUQ_WHOLE; pictures are copied to the folder that SKUQ_PICTURES names.
"""

import os
import re
import shutil
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from skuq.exceptions import SmallValidationWarning

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(r"(?ms)^```python\n(.*?)^```$(?:\s*^```(?:text)?\n(.*?)^```$)?")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


class Snippet(NamedTuple):
    page: str
    line: int
    code: str
    output: str | None


def snippets(path):
    text, page = path.read_text(), path.relative_to(ROOT).as_posix()
    return [
        Snippet(page, text[: found.start()].count("\n") + 2, *found.groups())
        for found in SNIPPET.finditer(text)
    ]


FOUND = [snippets(path) for path in PAGES if "_build" not in path.parts]
SNIPPETS = {found[0].page: found for found in FOUND if found}
# What would take long, by page: tried as it stands elsewhere, or in the benchmarks.
SHORTER = {
    "docs/bayesopt.md": {
        'NOMURegressor.from_paper("bayesopt", n_features=5)': "NOMURegressor(epochs=5)",
        "NEONRegressor(noise_std=0.0, prior=ConditionedPrior(scale=0.75))": (
            "NEONRegressor(noise_std=0.0, prior=ConditionedPrior(scale=0.75), epochs=5)"
        ),
        "NOMUReadout(l_min=1e-3, l_max=2, c=1)": "NOMUReadout(l_min=1e-3, l_max=2, c=1), epochs=5",
    }
    | {"(64, 64, 64)": "(8,)", "epochs=250": "epochs=5"}
    | {"n_calls=40": "n_calls=7", "n_calls=72": "n_calls=9"},
    "docs/clusters.md": {"n_trials=50": "n_trials=2"},
    "docs/durable.md": {"n_trials=500, n_jobs=-1": "n_trials=2", "n_trials=20": "n_trials=2"}
    | {"n_trials=30": "n_trials=3"},
    "docs/methods/neon.md": {"random_state=0).fit": "epochs=5, random_state=0).fit"}
    | {"(pretrained=model_that_exists)": "(pretrained=model_that_exists, epochs=5)"},
    "docs/methods/nes.md": {"n_trials=50, n_members=5": "n_trials=3, n_members=2"}
    | {"NESClassifier(n_trials=50)": "NESClassifier(n_trials=2, epochs=5)"},
    "docs/methods/nomu.md": {
        "NOMURegressor(random_state=0)": "NOMURegressor(epochs=5, random_state=0)"
    },
    "docs/methods/tabular.md": {"max_time=300, n_jobs=2": "n_trials=2"},
}
# What cannot run here, by a piece of it.
ELSEWHERE = {
    "SLURMCluster": "needs a SLURM cluster",
    "catboost": "has a test with the scorers",
    "results.csv": "needs the results of NAS-Bench-201",
}
# Pages without training, which the quick suite runs.
QUICK = ["docs/spaces.md"]


def shortened(snippet):
    code = snippet.code
    if "SKUQ_WHOLE" in os.environ:
        return code
    for long, short in SHORTER.get(snippet.page, {}).items():
        code = code.replace(long, short)
    return code


def test_snippets_are_python():
    assert sum(map(len, SNIPPETS.values())) > 30 and set(QUICK) <= set(SNIPPETS)
    for page, found in SNIPPETS.items():
        for snippet in found:
            compile(snippet.code, f"{page}:{snippet.line}", "exec")
        saved = [name for one in found for name in re.findall(r'savefig\("(.+?)"', one.code)]
        text = (ROOT / page).read_text()
        assert all(f"images/{name})" in text for name in saved), page
    code = {page: "\n".join(snippet.code for snippet in found) for page, found in SNIPPETS.items()}
    missing = [long for page, cut in SHORTER.items() for long in cut if long not in code[page]]
    assert missing == []


def check_output(snippet, printed):
    """Numbers may differ by two of their last digits, as between processors; words may not."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", snippet.output).split(), printed
    for shown, got in zip(NUMBER.findall(snippet.output), NUMBER.findall(printed)):
        digits = len(shown.partition(".")[2])
        margin = max(2 * 10.0**-digits, 0.03 * abs(float(shown)))
        assert abs(float(got) - float(shown)) <= margin, f"{snippet.page}: {shown} is {got}"


BY_TIER = [pytest.param(p, marks=[] if p in QUICK else pytest.mark.slow) for p in SNIPPETS]


@pytest.mark.parametrize("page", BY_TIER)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    namespace = {"__name__": "snippet"}
    with warnings.catch_warnings(action="error"):
        warnings.simplefilter("ignore", SmallValidationWarning)  # the data are small here
        for module in ("tensorflow", "tf_keras", "keras_tuner", "flatbuffers"):
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=module)
        for snippet in SNIPPETS[page]:
            if "sklearn.callback" in snippet.code:
                pytest.importorskip("sklearn.callback")
            if any(piece in snippet.code for piece in ELSEWHERE):
                continue
            code = shortened(snippet)  # Errors and tracebacks name the page and the line.
            program = compile("\n" * (snippet.line - 1) + code, snippet.page, "exec")
            with redirect_stdout(StringIO()) as printed:
                exec(program, namespace)
            if snippet.output is not None and code == snippet.code:
                check_output(snippet, printed.getvalue())
    if "SKUQ_PICTURES" in os.environ:
        for picture in tmp_path.glob("*.png"):
            shutil.copy(picture, os.environ["SKUQ_PICTURES"])
