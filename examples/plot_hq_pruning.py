"""
Pruning teams by diversity: the HQ paper's Figures 2 and 3
===========================================================

Which teams of ten models does hierarchical diversity pruning keep? First on ten scikit-learn
classifiers that learn the digits; then, with ``--data-dir``, on ten published CIFAR-10
networks. Saves ``hq_digits.png`` and ``hq_cifar10.png``. Takes half a minute.
"""

# %%
# A pool of scikit-learn classifiers
# ----------------------------------
# They vote with their probabilities. The pool is fitted on half of the rows; teams are
# chosen on a quarter and judged on the last.
import argparse
from pathlib import Path

import matplotlib
import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skuq import HQEnsembleSelector
from skuq.ensembles import select_teams
from skuq.plotting import TeamDisplay

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", type=Path, help="folder of the benchmark data")
parser.add_argument("--output-dir", type=Path, default=Path())
arguments = parser.parse_args()

pool = [
    ("logistic", LogisticRegression(max_iter=500)),
    ("lda", LinearDiscriminantAnalysis()),
    ("bayes", GaussianNB()),
    ("near 1", KNeighborsClassifier(1)),
    ("near 15", KNeighborsClassifier(15)),
    ("tree", DecisionTreeClassifier(random_state=0)),
    ("forest", RandomForestClassifier(30, max_depth=8, random_state=0)),
    ("extra trees", ExtraTreesClassifier(30, max_depth=8, random_state=0)),
    ("svm", CalibratedClassifierCV(SVC(C=0.3))),
    ("network", MLPClassifier((30,), max_iter=300, random_state=0)),
]
X, y = load_digits(return_X_y=True)
X_fit, X_rest, y_fit, y_rest = train_test_split(X, y, train_size=0.5, random_state=0, stratify=y)
X_choose, X_judge, y_choose, y_judge = train_test_split(
    X_rest, y_rest, train_size=0.5, random_state=0, stratify=y_rest
)
fitted = [(name, make_pipeline(StandardScaler(), m).fit(X_fit, y_fit)) for name, m in pool]
model = HQEnsembleSelector(fitted, cv="prefit").fit(X_choose, y_choose)

print(f"{model.n_scored_} of {model.n_possible_} teams looked at, {model.teams_.kept.sum()} kept")
print("selected:", ", ".join(model.named_estimators_))
everyone = np.mean([m.predict_proba(X_judge) for _, m in fitted], axis=0).argmax(axis=1)
print(f"judged: selected team {model.score(X_judge, y_judge):.4f}, vote of all "
      f"{np.mean(everyone == y_judge):.4f}, best single "
      f"{max(m.score(X_judge, y_judge) for _, m in fitted):.4f}")  # fmt: skip


# %%
# The figures
# -----------
# Above, as in Figure 2: teams of three, four and five with what the alpha filter prunes.
# Below, as in Figure 3: teams of three with the threshold of the K-means filter, for three
# measures of diversity.
def draw(predictions, truth, title, path):
    figure, axes = plt.subplots(2, 3, figsize=(14, 8.5), layout="constrained")
    figure.suptitle(title)
    alpha = select_teams(predictions, truth, metric="gd", filters=("alpha",))
    for ax, size in zip(axes[0], (3, 4, 5)):
        TeamDisplay.from_teams(alpha, ax=ax, size=size)
        ax.set_title(f"HQ-GD (α), teams of {size}")
    for ax, metric in zip(axes[1], ("ck", "kw", "gd")):
        TeamDisplay.from_teams(select_teams(predictions, truth, metric=metric), ax=ax, size=3)
        ax.set_title(f"HQ-{metric.upper()} (α + K), teams of 3")
    entries = {}
    for ax in axes.flat:  # one legend for all; how many teams a filter prunes is in `teams_`
        for handle, label in zip(*ax.get_legend_handles_labels()):
            entries.setdefault(label.split(" (")[0], handle)
        ax.get_legend().remove()
        bottom = ax.get_ylim()[0]
        drawn = [marks.get_offsets() for marks in ax.collections if len(marks.get_offsets())]
        top = max(places[:, 1].max() for places in drawn)
        ax.set_ylim(bottom, top + 0.08 * (top - bottom))
        ax.yaxis.set_major_locator(MaxNLocator(6))
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)


probabilities = [m.predict_proba(X_choose) for _, m in fitted]
draw(probabilities, y_choose, "Ten scikit-learn classifiers, digits, soft votes",
     arguments.output_dir / "hq_digits.png")  # fmt: skip

# %%
# Ten published networks
# ----------------------
# The ten of the CIFAR-10 test bed that are closest to the paper's pool. Only their labels
# are known, so they vote by plurality.
if arguments.data_dir:
    file = np.load(arguments.data_dir / "ensemble_predictions" / "cifar10_testbed_top1.npz")
    names = [f"resnet_basic_{depth}" for depth in (32, 44, 56, 110)]
    names += ["densenet_BC_100_12", "resnext_29_8x64d", "wrn_28_10", "vgg_15_BN_64"]
    names += ["resnet_preact_bottleneck_164", "wide_resnet_tf"]
    rows = [file["models"].tolist().index(name) for name in names]
    draw(file["pred_test"][rows], file["labels_test"], "Ten networks, CIFAR-10, hard votes",
         arguments.output_dir / "hq_cifar10.png")  # fmt: skip

# sphinx_gallery_thumbnail_path = "images/thumbs/hq_pruning.png"
