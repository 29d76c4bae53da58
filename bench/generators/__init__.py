"""Clients in Spark tasks: they send and verify records, and report rows to the driver.

rows.py                                     the rows that a task yields
phase.py, cluster.py, shipping.py           the driver: a running phase, reads of the cluster, the executors' code
assignment.py, control.py, running.py       clients of each task; the channel between driver and tasks; its orders
task.py                                     a task: its clients in threads
producer.py, consumer.py, connections.py    the clients
client.py, librdkafka.py, memory.py         librdkafka in batches; its messages as arrays
records.py, streams.py                      stamps in values; the sequences that were seen
tally.py, histograms.py                     counts of one client by seconds; its latencies
java_clients.py, paced.py                   without Spark: Kafka's tools, sockets with requests encoded once
"""
