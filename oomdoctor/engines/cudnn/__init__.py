"""cuDNN's own answers about a card that is described and need not be there."""
