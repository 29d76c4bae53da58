"""Processes beside a broker, and the set-up of Java, the jars of Apache Kafka and of Spark, MinIO and Chromium."""
