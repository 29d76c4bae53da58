"""`ottla produce` and `ottla consume`: records as lines of text or as JSON, in the same shape in both directions.

    produce_command.py --> formats.py (lines to records) --> producing.py --> confluent-kafka
    consume_command.py --> starting.py (where to begin) ---> consuming.py --> formats.py (records to lines)

They need confluent-kafka (`ottla[client]`), which only client.py imports. Topics, offsets and times are asked for by
`broker/cluster_client`, as by all commands.
"""
