"""Files for models that a library knows by name: generated from the model's own configuration, in a child process."""
