"""The report of `oomdoctor check`, a file a format; `sentences` holds the words that all formats share."""
