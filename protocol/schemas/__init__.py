"""Sources of the generated messages: kio's schema, and Kafka's own where Kafka is ahead of it.

    kafka_schemas.txt     Kafka's schemas as facts, written from its jars (`ottla.bench.components.kafka_schemas`)
    kafka_schemas.py      reads them
    from_kafka.py         a message merged from these facts
    from_kio.py           a message merged from kio's classes, one for each version
    merged.py             the form of a merged message; the tagged fields of our own

`ottla.protocol.generate` writes the text. A broker imports none of these.
"""
