"""The report of `oomdoctor diagnose`, a file a format; `sentences` holds the words that all formats share."""
