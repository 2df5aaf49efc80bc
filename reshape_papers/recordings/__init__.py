"""Trains the models of the zoo and measures them, for `reshape record`: alone, beside others, or stopped midway."""
