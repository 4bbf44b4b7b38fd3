"""Charts as HTML and SVG made on the server: sizes come in as bytes, positions go out as percentages.

They use the page's CSS variables, so one string is right in light and dark, and widths in per cent, so it is
right on a phone. Gradio patches the page in place, so that a changed width is a transition and not a redraw.
"""
