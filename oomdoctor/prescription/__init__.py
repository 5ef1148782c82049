"""`oomdoctor prescribe`: measure remedies, search over their combinations, and write a patch."""
