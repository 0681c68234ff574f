"""
A search in two sittings
========================

The first sitting trains 15 networks and ends. The second goes on in the same folder, to 40: the
first 15 are read, not trained. Then the folder alone, without data, gives ensembles of any size and
kind.
"""

import tempfile
import time

import matplotlib.pyplot as plt
from sklearn.datasets import make_friedman1
from sklearn.model_selection import train_test_split

from skuq import AutoDEUQRegressor
from skuq.plotting import SearchHistoryDisplay
from skuq.search import AgEBO

X, y = make_friedman1(n_samples=900, noise=1.0, random_state=0)
X, X_test, y, y_test = train_test_split(X, y, test_size=400, random_state=0)

folder = tempfile.mkdtemp(prefix="skuq-example-")  # yours stays where it is
search = AutoDEUQRegressor(
    15,
    space="dense",
    epochs=60,
    search=AgEBO(population_size=8, sample_size=3),
    catalog_dir=folder,
    n_jobs=2,
    random_state=0,
)
start = time.perf_counter()
search.fit(X, y)
first = time.perf_counter() - start

start = time.perf_counter()
search.set_params(n_trials=40).fit(X, y)
print(f"15 trials: {first:.0f} s; 25 more: {time.perf_counter() - start:.0f} s")

start = time.perf_counter()
model = AutoDEUQRegressor.from_catalog(folder)
print(f"from the folder alone: {time.perf_counter() - start:.1f} s, {model.catalog_}")
for file in sorted(model.catalog_path_.iterdir())[:4]:
    print(f"  {file.name}: {file.stat().st_size / 1024:.0f} KiB")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
SearchHistoryDisplay.from_estimator(model, ax=left)
left.axvline(14.5, color="0.4", linestyle=":")
left.set_title("One search; the first sitting ended at the dotted line")

sizes = [2, 3, 5, 8, 12]
for selection, style, colour in (("greedy", "o-", "#0072B2"), ("top", "s--", "#E69F00")):
    nll = [
        -model.reselect(n_members=size, selection=selection).log_prob(X_test, y_test).mean()
        for size in sizes
    ]
    right.plot(sizes, nll, style, color=colour, label=f'selection="{selection}"')
right.set(
    xlabel="n_members",
    ylabel="NLL on test rows (nats)",
    title="Ensembles from the same 40 networks",
    xticks=sizes,
)
right.legend(frameon=False)
figure.savefig("durable_search.png", dpi=120)

# sphinx_gallery_thumbnail_path = "images/thumbs/durable_search.png"
