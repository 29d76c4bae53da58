"""One replica's log on disk, in the files of Apache Kafka."""
