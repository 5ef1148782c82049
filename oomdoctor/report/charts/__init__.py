"""Geometry of the charts on an HTML page, in numbers; the templates draw it as SVG."""
