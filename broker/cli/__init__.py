"""The commands of `ottla`: a broker, local clusters, formatting, partitions, the tier, and files of a log (`files/`).

`ottla.command_line` imports each one when it is called.
"""
