"""Applies the messages of a queue: taken from its log, written through the gateway's own write path, decided once.

consumer.py takes and orders, deciding.py decides one message, applying.py writes it. What makes the effect one is not
here: the position of a message is its token, so the fence refuses what comes again (R1), and the record of its id is in
the transaction of its effect (R16).
"""
