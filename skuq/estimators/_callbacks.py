"""Call scikit-learn's callbacks (1.9 and later, experimental) for fits and their steps."""

from __future__ import annotations

import functools
import inspect

from skuq._utils._messages import listening


def tells_callbacks(fit):
    """Call callbacks at the start of a fit, for each step and at the end (decorator).

    Steps are those that `Progress` counts: trials of a search, epochs of a training, fits of folds.
    At the end callbacks can use the fitted estimator, which `ScoringMonitor` scores. Put the
    decorator below `fit_context`, which ends callbacks even after an error.
    """
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def fit_with_callbacks(self, *args, **kwargs):
        if not getattr(self, "_skl_callbacks", None):
            with listening(None):  # an outer fit counts only its own steps
                return fit(self, *args, **kwargs)
        _, X, y, *_ = signature.bind(self, *args, **kwargs).arguments.values()
        context = self._init_callback_context(max_subtasks=None)
        context.call_on_fit_task_begin(estimator=self, X=X, y=y)

        def count(unit, n):
            for _ in range(n):
                step = context.subcontext(task_name=unit)
                step.call_on_fit_task_begin(estimator=self)
                step.call_on_fit_task_end(estimator=self)

        with listening(count):
            fit(self, *args, **kwargs)
        context.call_on_fit_task_end(estimator=self, X=X, y=y, reconstruction_attributes={})
        return self

    return fit_with_callbacks
