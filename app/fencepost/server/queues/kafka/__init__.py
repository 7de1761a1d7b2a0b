"""A Kafka topic as a log of writes, on confluent-kafka, whose core is librdkafka.

log.py puts the parts together: producer.py appends, consumer.py takes (ledger.py knows what of it is done), cluster.py
asks what the topic is now, dead_letters.py keeps what could not be applied, url.py reads the settings.
"""
