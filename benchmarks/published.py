"""Published figures that the pages have beside our own; their sources stand in the file."""

import json

import numpy as np
from runner import STORED

PUBLISHED = json.loads((STORED / "published.json").read_text())
#: (NLL, RMSE) of Table I of AutoDEUQ, by set and method.
TABLE_I = PUBLISHED["autodeuq"]["table"]
NOMU = PUBLISHED["nomu"]
REGRETS = PUBLISHED["regrets"]["table"]


def medians(part, designs):
    """Medians of searches: ``{title: (number of searches, {further points: median})}``.

    Those of the pollutants and of the interferometer begin with `designs`, as ours do.
    """
    if part == "brusselator":
        found = PUBLISHED["brusselator"]["table"]
        return {t: (n, {int(k): v for k, v in by.items()}) for t, (n, by) in found.items()}
    found = {}
    for title, by_mark in PUBLISHED[part]["by_design"].items():
        found[title] = (
            len(designs),
            {
                int(mark): None if best is None else float(np.median(np.array(best)[designs]))
                for mark, best in by_mark.items()
            },
        )
    return found
