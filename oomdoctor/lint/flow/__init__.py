"""What a program does, in order: an abstract run of its code that notes training's own events."""
