"""Why it happened: each rule looks at one situation and answers with a cause and its evidence, or not at all."""
