"""Clients in Spark tasks: what they send and verify, and what they report.

rows.py                                     what a task yields
phase.py, cluster.py, shipping.py           the driver: a phase while it runs, what it asks the cluster, bench on the executors
assignment.py, control.py, running.py       which client runs where; the channel between driver and tasks; its orders
task.py                                     a task: its clients in threads
producer.py, consumer.py, connections.py    the clients
client.py, librdkafka.py, memory.py         librdkafka in batches; its messages as arrays
records.py, streams.py                      stamps in values; which sequences were seen
tally.py, latency.py                        counts of one client by seconds; its histograms
"""
