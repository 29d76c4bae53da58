"""The commands of `ottla` that do not run a node in their own process: formatting, information, a local cluster,
partitions, the tier.

They are imported when one is called (`ottla.broker.tools`), which keeps the start of a broker fast.
"""
