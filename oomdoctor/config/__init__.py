"""Settings from `oomdoctor.toml`, `pyproject.toml` and the environment.

Found, read strictly, and laid over each other. `schema` states what may be set; a new command adds its table there.
"""
