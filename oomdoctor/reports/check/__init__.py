"""What `oomdoctor check` found, a file a format."""
