"""Which members to keep: functions from arrays of predictions to indices and weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_diversity": ["architecture_diversity", "diversity_score"],
        "_hq": ["select_hq", "select_hq_proba", "select_teams"],
        "_likelihood": ["SELECTORS", "select_by", "select_by_likelihood"],
        "_pruning": ["TeamSelection"],
        "_selection": [
            "Selection",
            "check_selection",
            "select_forward",
            "select_greedy",
            "select_top",
        ],
    },
)
