"""Training scripts that oomdoctor can probe at once: `oomdoctor probe gpt2`."""
