"""A result as a page and as pictures: what `ottla bench report` writes, and docs/benchmarks.

Everything on the page is in its one file: no network, no fonts, a few lines of script that only show values.
"""
