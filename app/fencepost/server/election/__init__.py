"""Leader election over any token source. An election is a lock, and its leader the lock's holder; no more is stored.

    campaign   acquire the lock `election/NAME`, waiting for it
    term       the number of that lease: a later leader's is larger, and so are all tokens that he draws
    resign     release the lease; a leader that cannot renew it is deposed when its time runs out
    observe    look who has the lock

Two may believe that they lead: one was paused, or cut off. The older one's writes carry a token of its lease, and are
refused once the younger one has written or claimed. The election decides who should write; the fence, whose writes are
accepted.

An observer sees the state of a moment ago: use it to find the leader, never to decide who may write.
"""
