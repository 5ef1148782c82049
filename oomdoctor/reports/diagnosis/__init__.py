"""What `oomdoctor diagnose` found, a file a format."""
