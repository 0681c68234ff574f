"""Tools that several packages share. None of them is public."""
