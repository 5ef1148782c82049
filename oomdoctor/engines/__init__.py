"""The engines that run trials: a real GPU, the null GPU and the trace, with the cards they play and their choice."""
