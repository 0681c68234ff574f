"""Published figures that the pages have beside our own; their sources stand in the file."""

import json

import numpy as np
from runner import STORED

PUBLISHED = json.loads((STORED / "published.json").read_text())
#: (NLL, RMSE) of Table I of AutoDEUQ, by set and method.
TABLE_I = PUBLISHED["autodeuq"]["table"]
DENSITIES = PUBLISHED["densities"]["table"]
NOMU = PUBLISHED["nomu"]
REGRETS = PUBLISHED["regrets"]["table"]


def medians(part, designs):
    """Medians of searches: ``{title: (number of searches, {further points: median})}``.

    Those of the pollutants and of the interferometer begin with `designs`, as ours do.
    """
    if part == "brusselator":
        found = PUBLISHED["brusselator"]["table"].items()
        return {t: (n, {int(k): v for k, v in by.items()}) for t, (n, by) in found}
    return {
        t: (len(designs), {int(k): v and np.median(np.array(v)[designs]) for k, v in by.items()})
        for t, by in PUBLISHED[part]["by_design"].items()
    }
