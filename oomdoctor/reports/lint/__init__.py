"""What `oomdoctor lint` found, a file a format."""
