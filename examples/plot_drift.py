"""
Intervals that stay right while the world changes
=================================================

A regressor is calibrated on one year. In the next year demand grows and becomes more volatile, most
of all in summer. Truths arrive after a day, and ``partial_calibrate`` updates intervals, density
and standard deviations. Saves ``drift.png``; takes seconds.
"""

# %%
# Two years of daily cycles
# -------------------------
import matplotlib
import numpy as np
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

from skuq import CalibratedUncertaintyRegressor
from skuq.metrics import exchangeability_martingale

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

rng = np.random.default_rng(0)
hour = np.tile(np.arange(24), 730)
day = np.repeat(np.arange(730), 24)
growth = np.where(day < 365, 1.0, 1 + 0.5 * np.sin((day - 365) / 365 * np.pi))
weather = np.repeat(rng.normal(size=730), 24)
y = 100 * growth * (1.5 - np.cos(hour / 24 * 2 * np.pi)) + growth**3 * (
    8 * weather + 15 * rng.normal(size=len(hour))
)
X = hour[:, None].astype(float)
first, second = day < 365, day >= 365

# %%
# Calibrate on the first year, and update through the second
# ----------------------------------------------------------
splines = make_pipeline(SplineTransformer(8), BayesianRidge())
model = CalibratedUncertaintyRegressor(splines, cv=KFold(5)).fit(X[first], y[first])
without = model.predict_interval(X[second], 0.9)


def errors(rows):
    mean, std = model.predict(X[rows], return_std=True)
    return abs(y[rows] - mean) / std


log_wealth = exchangeability_martingale(errors(second), errors(first), random_state=0)
followed = []
for today in range(365, 730):
    rows = day == today
    followed.append(model.predict_interval(X[rows], 0.9))  # before the truths are known
    model.partial_calibrate(X[rows], y[rows], time=day[rows])
followed = np.concatenate(followed)
print(model.drift_)
month = (day[second] - 365) // 30.5
for name, (low, high) in {"as it was": without.T, "followed": followed.T}.items():
    held = (low <= y[second]) & (y[second] <= high)
    months = [held[month == m].mean() for m in range(12)]
    print(f"{name:10s} holds {held.mean():.3f}, the worst month {min(months):.2f}")

# %%
# The picture
# -----------
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
for name, style, (low, high) in (
    ("as it was", "s--", without.T),
    ("truths after a day", "o-", followed.T),
):
    held = (low <= y[second]) & (y[second] <= high)
    left.plot(range(1, 13), [held[month == m].mean() for m in range(12)], style, label=name)
left.axhline(0.9, color="black", linewidth=1, linestyle=":")
left.set(xlabel="month of the second year", ylabel="share of rows in 90 % intervals", ylim=(0, 1))
left.set_title("Coverage")
left.legend(loc="lower left")
right.plot((day[second] - 365)[24:], log_wealth[24:] / np.log(10))
right.axhline(2, color="black", linewidth=1, linestyle=":", label="1 % level")
right.set(xlabel="day of the second year", ylabel="log10 of the wealth")
right.set_title("Are these rows like those of the first year?")
right.legend(loc="upper left")
figure.savefig("drift.png", dpi=110)

# sphinx_gallery_thumbnail_path = "images/drift.png"
