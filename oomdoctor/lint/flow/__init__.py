"""An abstract run of a program that notes training's events in order."""
