"""
Choosing settings by a score of uncertainty
===========================================

A pipeline for a table of numbers and categories in scikit-learn's `GridSearchCV`, judged by the
continuous ranked probability score (CRPS), which sees the whole predicted distribution, and by the
coverage of 90 % intervals. A setting with good means need not have good intervals. Takes about a
minute on two cores and saves ``grid_search.png``.
"""

# %%
# A table with numbers and a category
# -----------------------------------
# Noise grows with pressure; the third catalyst is rare.
import matplotlib
import numpy as np
import pandas as pd
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from skuq import DeepEnsembleRegressor
from skuq.metrics import make_scorers

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

rng = np.random.default_rng(0)
n = 600
X = pd.DataFrame(
    {
        "temperature": rng.normal(20, 5, n),
        "pressure": rng.gamma(4, 0.5, n),
        "catalyst": rng.choice(["A", "B", "C"], n, p=[0.6, 0.3, 0.1]),
    }
)
effect = X["catalyst"].map({"A": 0.0, "B": 1.0, "C": -1.5})
noise = 0.1 + 0.2 * X["pressure"]
y = np.sin(X["temperature"] / 4) + 0.5 * X["pressure"] + effect + noise * rng.standard_normal(n)


def add_ratio(frame):
    """A column that an engineer would add."""
    return frame.assign(ratio=frame["pressure"] / frame["temperature"].abs())


# %%
# The pipeline and the grid
# -------------------------
# The ensemble takes the category as it is. `make_scorers` gives scorers by name; they find the
# ensemble inside the pipeline. The search is decided by the CRPS.
pipeline = Pipeline(
    [
        ("ratio", FunctionTransformer(add_ratio)),
        ("ensemble", DeepEnsembleRegressor(3, epochs=300, random_state=0)),
    ]
)
grid = {
    "ensemble__loss": ["nll", "beta-nll", "crps"],
    "ensemble__network__hidden_units": [(20,), (50, 50)],
}
scoring = make_scorers("neg_crps", "coverage_90", "r2")
search = GridSearchCV(pipeline, grid, cv=3, scoring=scoring, refit="neg_crps").fit(X, y)
table = pd.DataFrame(search.cv_results_)
columns = [*(f"param_{name}" for name in grid), *(f"mean_test_{name}" for name in scoring)]
print(table[columns].round(3).to_string(index=False))
print("best:", search.best_params_)

# %%
# CRPS and coverage of all settings
# ---------------------------------
figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
for loss, marker in zip(grid["ensemble__loss"], "os^"):
    for units, fill in zip(grid["ensemble__network__hidden_units"], ("none", "full")):
        has_settings = (table["param_ensemble__loss"] == loss) & (
            table["param_ensemble__network__hidden_units"] == units
        )
        scores = table[has_settings].iloc[0]
        axes.plot(
            -scores["mean_test_neg_crps"],
            scores["mean_test_coverage_90"],
            marker,
            color="#0072B2",
            fillstyle=fill,
            ms=8,
            ls="none",
            label=f'loss="{loss}", hidden_units={units}',
        )
axes.axhline(0.9, color="0.4", lw=1)
axes.set(xlabel="CRPS, in units of y (smaller is better)", ylabel="share inside 90 % intervals")
axes.legend(frameon=False, fontsize="small")
figure.savefig("grid_search.png", dpi=110)

# sphinx_gallery_thumbnail_path = "images/thumbs/grid_search.png"
