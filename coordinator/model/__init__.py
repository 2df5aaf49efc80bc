"""Typed views of the documents in the store and pure rules about one document. Imports no other room."""
