"""The partitions that this broker hosts, and the requests that wait for something to happen to them."""
