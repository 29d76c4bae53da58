#!/bin/sh
# Where Apache Kafka's image has its start, /etc/kafka/docker/run: modules of testcontainers run it with KAFKA_* variables.
exec ottla container
