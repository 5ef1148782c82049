"""The report of `oomdoctor gpus --fit`."""
