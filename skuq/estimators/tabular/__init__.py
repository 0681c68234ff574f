"""Recommended estimators for tables, and everything that was tuned for them."""
