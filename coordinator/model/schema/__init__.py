"""The public fields of a job document, described once: what pages, JSON Schema and OpenAPI are written from."""
