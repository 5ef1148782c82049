"""Functions for Python programs; `oomdoctor` exports them."""
