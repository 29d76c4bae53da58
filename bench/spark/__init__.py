"""Spark for the benchmarks: a session, and the jars of its Kafka connector."""
