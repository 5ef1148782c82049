"""The report of `oomdoctor lint`, a file a format; `sentences` holds the words that all formats share."""
