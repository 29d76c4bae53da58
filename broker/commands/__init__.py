"""The commands of `ottla` that are not for a running node's own process: formatting, looking, a local cluster.

They are imported when one is asked for (`broker.tools`): the start of a broker does not wait for them.
"""
