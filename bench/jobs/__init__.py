"""Spark jobs as the load of a phase: what a user of Spark does with topics, counted and verified record by record.

    options.py     what a workload may say of a job; checked before any load
    run.py         a job of a workload -> its rows
    client.py      whose rows they are
    write.py       N records into a topic with Spark's Kafka connector, in one batch
    read.py        a whole topic: with the connector, or from the object store with ottla-tier
    stream.py      a topic into another one with structured streaming, stopped and restarted once
    verify.py      frames of records -> rows: the stamps of `ottla.bench.generators.records` are checked by the tasks that read them
    arrivals.py    how many records a topic has, second by second

A job's rows of seconds and of the client have the role JOB; those of streams say what it wrote (PRODUCER) or saw (CONSUMER).
"""
