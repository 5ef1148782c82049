"""What a rule is, in every format of `oomdoctor rule`."""
