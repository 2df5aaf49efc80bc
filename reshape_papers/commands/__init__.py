"""The verbs that reshape-papers adds to the `reshape` command."""
