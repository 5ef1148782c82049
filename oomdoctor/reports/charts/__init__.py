"""The geometry of charts: where areas, lines, dots and labels are, in units that a template can draw.

A plot is a box of `SCALE` by `SCALE` units that the page stretches to its width. Labels and dots are placed in per
cent of the box, so that letters and dots are not stretched with it. Nothing here makes markup.
"""
