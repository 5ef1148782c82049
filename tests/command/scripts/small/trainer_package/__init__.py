"""A training program that is a package: `python -m trainer_package --batch-size 8`."""
