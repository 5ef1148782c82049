"""The search for the largest micro-batch, and the plan that reaches the target batch; pure, and free of torch."""
