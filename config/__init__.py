"""Configurations of brokers and topics: the definitions of all keys, their values, dynamic changes, descriptions."""
