"""The report of `oomdoctor probe`, a file a format; `sentences` holds the words that all formats share."""
