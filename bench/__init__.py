"""Loads for any Kafka-compatible broker, and Kafka and Ottla side by side.

They know a broker by its socket and its process only.
"""
