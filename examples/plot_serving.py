"""
Serving without TensorFlow
==========================

A trained ensemble is saved as one file of numbers. A process that loads it and predicts needs
neither TensorFlow nor a compiler, starts in a few seconds and answers in about a millisecond.
Nothing in the file is executed when it is read. Takes half a minute and saves ``serving.png``.
The machine that drew the picture below did other work, too: bars beyond 5 ms are its pauses.
"""

# %%
# Train and save
# --------------
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import matplotlib
import numpy as np
from sklearn.datasets import load_diabetes

import skuq

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

X, y = load_diabetes(return_X_y=True)
model = skuq.TabularEnsembleRegressor(random_state=0).fit(X, y)
folder = Path(tempfile.mkdtemp(prefix="skuq-example-"))
skuq.save(model, folder / "model.skuq")
print(f"{(folder / 'model.skuq').stat().st_size / 1e6:.1f} MB")

# %%
# The server
# ----------
# It loads the file, answers one request at a time, and says whether TensorFlow was loaded.
server = textwrap.dedent(
    """
    import sys, time
    started = time.perf_counter()
    import numpy as np
    import skuq
    model = skuq.load(sys.argv[1])
    row = np.zeros((1, 10))
    model.predict(row, return_std=True)
    print(time.perf_counter() - started, "tensorflow" in sys.modules)
    for _ in range(500):
        started = time.perf_counter()
        model.predict(row, return_std=True)
        print(time.perf_counter() - started)
    """
)
command = [sys.executable, "-c", server, str(folder / "model.skuq")]
run = subprocess.run(command, capture_output=True, text=True, check=True)
first, *rest = run.stdout.splitlines()
seconds, has_tensorflow = first.split()
milliseconds = sorted(1000 * float(line) for line in rest)
print(f"ready after {float(seconds):.1f} s, TensorFlow loaded: {has_tensorflow}")
print(f"median answer: {milliseconds[len(milliseconds) // 2]:.2f} ms")

# %%
# Times of answers
# ----------------
figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
bins = np.geomspace(milliseconds[0], milliseconds[-1], 40)
axes.hist(milliseconds, bins=bins, color="#0072B2")
axes.set(
    xlabel="time of an answer with mean and standard deviation (ms)",
    ylabel=f"answers, of {len(milliseconds)}",
    xscale="log",
)
axes.minorticks_off()
axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
axes.set_title(f"{len(model.members_)} networks, one row at a time")
figure.savefig("serving.png", dpi=110)

# sphinx_gallery_thumbnail_path = "images/thumbs/serving.png"
