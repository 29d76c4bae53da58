"""Spark jobs as the load of a phase: what a user of Spark does with topics, counted and verified record by record.

    options.py     the options of a job in a workload; checked before any load
    run.py         a job of a workload -> its rows
    client.py      the client that a job's rows are of
    write.py       N records into a topic with Spark's Kafka connector, in one batch
    read.py        a whole topic: with the connector, or from the object store with ottla-tier
    stream.py      a topic into another one with structured streaming, stopped and restarted once
    verify.py      frames of records -> rows: their stamps are verified by the tasks that read them
    arrivals.py    the number of records in a topic, second by second

A job's rows of seconds and of the client have the role JOB; those of streams say what it wrote (PRODUCER) or
saw (CONSUMER).
"""
