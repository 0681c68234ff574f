"""
Which feature makes the model unsure
====================================

scikit-learn's ``permutation_importance`` asks how much a score suffers when a feature is shuffled.
Asked of the likelihood, it says which features the predictions need. Asked of the two parts of the
uncertainty, it says which features decide where a row is noisy, and which decide where the model
has seen too little. The data are synthetic, so the right answers are known. Saves
``importance.png``; takes about a minute.
"""

# %%
# A machine, measured 600 times
# -----------------------------
# The load moves the mean, the age makes results noisy, and hardly any row has a high temperature.
# Humidity does nothing.
import matplotlib
import numpy as np
import pandas as pd
from sklearn.inspection import permutation_importance

from skuq import TabularEnsembleRegressor

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

rng = np.random.default_rng(0)


def measure(n, hot):
    """Rows of the machine; a share `hot` of them has a temperature above 60."""
    temperature = np.where(rng.random(n) < hot, rng.uniform(60, 100, n), rng.uniform(20, 60, n))
    X = pd.DataFrame(
        {
            "load": rng.uniform(0, 1, n),
            "age": rng.uniform(0, 1, n),
            "temperature": temperature,
            "humidity": rng.uniform(0, 1, n),
        }
    )
    mean = 3 * np.sin(4 * X["load"]) + np.cos(temperature / 10)
    return X, mean + (0.05 + X["age"] ** 2) * rng.normal(size=n)


X_train, y_train = measure(600, hot=0.01)
X_test, y_test = measure(300, hot=0.5)
model = TabularEnsembleRegressor(random_state=0).fit(X_train, y_train)

# %%
# Three questions
# ---------------
# A scorer gets what ``permutation_importance`` is given as y: the targets, or one part of the
# uncertainty of the unshuffled rows. The importance is then how far shuffling moves that part, in
# units of y.


def log_likelihood(model, X, y):
    return model.log_prob(X, y).mean()


def stays(part):
    def score(model, X, before):
        return -np.abs(getattr(model.predict_uncertainty(X), part) - before).mean()

    return score


parts = model.predict_uncertainty(X_test)
questions = {
    "What do predictions need?\nlog likelihood (nats)": (y_test, log_likelihood),
    "Where is it noisy?\naleatoric std": (parts.aleatoric, stays("aleatoric")),
    "What has it not seen?\nepistemic std": (parts.epistemic, stays("epistemic")),
}
found = {
    question: permutation_importance(model, X_test, y, scoring=score, n_repeats=5, random_state=0)
    for question, (y, score) in questions.items()
}
for question, importance in found.items():
    print(question.replace("\n", " "))
    for name, mean in zip(X_test, importance.importances_mean):
        print(f"    {name:12s}{mean:7.3f}")

# %%
# The picture
# -----------
# Bars are means of five shuffles with their standard deviations.
figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
colours = ("#666666", "#56B4E9", "#E69F00")
for ax, colour, (question, importance) in zip(axes, colours, found.items()):
    ax.barh(
        list(X_test), importance.importances_mean, xerr=importance.importances_std, color=colour
    )
    ax.set(title=question, xlabel="importance")
axes[0].invert_yaxis()
figure.savefig("importance.png", dpi=110)

# sphinx_gallery_thumbnail_path = "images/thumbs/importance.png"
