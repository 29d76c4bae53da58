"""All logs of a broker, and their directories (Kafka's LogManager). Modules of one log do not import this package."""
