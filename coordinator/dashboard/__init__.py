"""The dashboard's contents: rows, pictures and pages, made of what the API tells. `coordinator/http` serves them."""
