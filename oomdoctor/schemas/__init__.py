"""JSON Schemas of the documents, shipped as data."""
