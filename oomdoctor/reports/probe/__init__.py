"""What `oomdoctor probe` found, a file a format."""
