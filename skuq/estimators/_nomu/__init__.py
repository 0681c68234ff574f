"""NOMU: one network for a prediction and its model uncertainty."""
