"""`oomdoctor check`: what a team asks of its models, held to what a probe finds and to what it found before."""
