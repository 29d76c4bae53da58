"""`spark.read.format("ottla-tier")`: the history of topics straight from the object store, as a PySpark data source.

    options.py      the topics, offsets and columns to read, and the store
    copies.py       the copies of the topics' partitions: by the store's objects, or by topic_records.py
    bounds.py       the filters of the query, as far as they leave out copies
    planning.py     copies -> histories -> offsets -> tasks
    reading.py      a task: the batches of its copies as columns of Arrow
    source.py       the data source itself, the only module that imports pyspark

It needs pyspark and pyarrow, and confluent-kafka for the metadata of a cluster: nothing else imports it.
"""
