"""Fitted models, which predict independently of the estimators that trained them."""
