"""The generated pages of docs/reference/, each made by a function that returns its text."""
