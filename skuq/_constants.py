"""Constants used by several packages."""

import numpy as np

#: Minus the log density of a standard normal at 0.
LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
