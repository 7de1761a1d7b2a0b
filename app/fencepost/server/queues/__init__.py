"""Queues: ordered logs of writes in front of the fence. Nothing here knows tables; consuming/ applies what is taken."""
