"""Little uses of operators, by kind; each module has a table of them."""
