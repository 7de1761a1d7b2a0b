"""The Lua scripts of a queue in Redis. Redis runs a script whole: nothing happens in between, and no key expires in it.

KEYS[1] is always the queue's own key. Its value, the layout, is `<incarnation>/<partitions>`, made once with the queue;
every script compares it, so that nothing is done to another queue of the same name. A script that sees that messages
are gone which were there replaces the incarnation: from then on all processes see that this is another log.

The stream of a partition has the messages that are not decided yet: done is XDEL, and the stream keeps its last id.
How many were deleted so is counted, and compared with what the stream says
that it had and has: messages that were trimmed, or deleted by hand, are missed, and the queue gets another incarnation.
Messages are read with XRANGE behind what their owner has read before, from the start when it is a new owner. There is
no consumer group: a partition has one owner, and what is not done is what is in the stream, in order. A group would
write one more record into the journal for each message, to say the same.

Numbers in Lua are doubles, exact up to 2^53.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Final

from fencepost.server.queues.log import MOST_OFFSET


@dataclass(frozen=True, slots=True)
class Script:
    """A script; `sha` is how the server remembers it."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", sha)


_LAST: Final = """
-- The sequence of the last message that a stream ever had; 0: none.
local function last_of(key)
  if redis.call('EXISTS', key) == 0 then return 0 end
  local info = redis.call('XINFO', 'STREAM', key)
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then return tonumber(string.match(info[at + 1], '^0%-(%d+)$')) or -1 end
  end
end
"""

_MISSED: Final = """
-- How many messages of a stream are gone that nobody has done. `done`: the key with the counts of those that are done.
-- `at`: the number of the partition.
local function missed(key, done, at)
  if redis.call('EXISTS', key) == 0 then return 0 end
  local info, length, added = redis.call('XINFO', 'STREAM', key), 0, 0
  for n = 1, #info, 2 do
    if info[n] == 'length' then length = info[n + 1] elseif info[n] == 'entries-added' then added = info[n + 1] end
  end
  return added - length - (tonumber(redis.call('HGET', done, at)) or 0)
end
"""

MAKE: Final = Script("""
-- KEYS queue, done; ARGV the layout of a new queue. Gives the layout that it has.
local layout = redis.call('GET', KEYS[1])
if layout then return layout end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'of', ARGV[1])
return ARGV[1]
""")

MISSED: Final = Script(f"""{_MISSED}
-- KEYS queue, done, streams; ARGV layout, a layout to replace this one if messages are missed. Gives the layout; or the
-- number of the first stream of which messages are gone that nobody has done, from 1, and how many. Where the counts
-- are of another layout, or are not there, they begin anew.
local layout = redis.call('GET', KEYS[1])
if layout ~= ARGV[1] then return {{layout}} end
local of, found, number = redis.call('HGET', KEYS[2], 'of'), 0, 0
if of == layout then
  for at = 3, #KEYS do
    if found <= 0 then number, found = at - 2, missed(KEYS[at], KEYS[2], at - 3) end
  end
  if found <= 0 then return {{layout}} end
  layout = ARGV[2]
  redis.call('SET', KEYS[1], layout)
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'of', layout)
for at = 3, #KEYS do redis.call('HSET', KEYS[2], at - 3, missed(KEYS[at], KEYS[2], at - 3)) end
if found <= 0 then return {{layout}} end
return {{number, found}}
""")

APPEND: Final = Script(f"""
-- KEYS queue, stream, done; ARGV layout, the highest sequence that the asker knows of, a layout to replace this one if
-- messages are lost, the number of the partition, then the fields. Gives the message's sequence; or the layout where it
-- is another; or false where there is none.
local layout = redis.call('GET', KEYS[1])
if layout ~= ARGV[1] then return layout end
local time = redis.call('TIME')
local at = string.format('%d.%06d', time[1], time[2])
local id = redis.call('XADD', KEYS[2], '0-*', 'at', at, unpack(ARGV, 5))
local sequence = tonumber(string.sub(id, 3))
if sequence <= tonumber(ARGV[2]) then
  redis.call('XDEL', KEYS[2], id)
  redis.call('SET', KEYS[1], ARGV[3])
  return ARGV[3]
end
if sequence > {MOST_OFFSET + 1} then
  redis.call('HINCRBY', KEYS[3], ARGV[4], redis.call('XDEL', KEYS[2], id))
  return redis.error_reply('ERR the partition is full: no token can be made of its next offset')
end
return sequence
""")

STATE: Final = Script(f"""{_LAST}
-- KEYS queue, streams; ARGV layout. Gives the layout, then for each stream its last sequence; -1: not of this program.
local answer = {{redis.call('GET', KEYS[1])}}
if answer[1] ~= ARGV[1] then return answer end
for at = 2, #KEYS do answer[at] = last_of(KEYS[at]) end
return answer
""")

DECIDED: Final = Script(f"""{_LAST}
-- KEYS queue, streams; ARGV layout. Gives the layout, then for each stream the sequence below which nothing is undone.
local answer = {{redis.call('GET', KEYS[1])}}
if answer[1] ~= ARGV[1] then return answer end
for at = 2, #KEYS do
  local first = redis.call('XRANGE', KEYS[at], '-', '+', 'COUNT', 1)[1]
  answer[at] = first and tonumber(string.match(first[1], '^0%-(%d+)$') or 0) or last_of(KEYS[at]) + 1
end
return answer
""")

OLDEST: Final = Script("""
-- KEYS queue, streams; ARGV layout. Gives the layout, then for each stream when its first message was added, or ''.
local answer = {redis.call('GET', KEYS[1])}
if answer[1] ~= ARGV[1] then return answer end
for at = 2, #KEYS do
  local first = redis.call('XRANGE', KEYS[at], '-', '+', 'COUNT', 1)[1]
  answer[at] = ''
  if first then
    for field = 1, #first[2], 2 do
      if first[2][field] == 'at' then answer[at] = first[2][field + 1] end
    end
  end
end
return answer
""")

CLAIM: Final = Script("""
-- KEYS queue, members, owners of all partitions; ARGV layout, asker, TTL in ms, 1 if it asks for the first time.
-- An asker is `<16 hex digits>:<member>`. Gives how many partitions it should have, then the numbers of those it has;
-- -1 where another process has come under its name since; or the layout where it is another, or false.
local layout = redis.call('GET', KEYS[1])
if layout ~= ARGV[1] then return layout end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
-- A member that was started again takes at once what it had. What it was before may still run.
local former = {}
for _, other in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  if other ~= ARGV[2] and string.sub(other, 17) == string.sub(ARGV[2], 17) then
    if ARGV[4] ~= '1' then return {-1} end
    former[other] = true
    redis.call('ZREM', KEYS[2], other)
  end
end
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[2])
local members = redis.call('ZRANGE', KEYS[2], 0, -1)
local function by_name(asker) return string.sub(asker, 17) .. string.sub(asker, 1, 16) end
table.sort(members, function(one, other) return by_name(one) < by_name(other) end)
local partitions, quota = #KEYS - 2, 0
for rank, member in ipairs(members) do
  if member == ARGV[2] then
    quota = math.floor(partitions / #members) + (rank <= partitions % #members and 1 or 0)
  end
end
local mine, free = {}, {}
for at = 3, #KEYS do
  local owner = redis.call('GET', KEYS[at])
  if owner == ARGV[2] then
    redis.call('PEXPIRE', KEYS[at], ARGV[3])
    mine[#mine + 1] = at - 3
  elseif not owner or former[owner] then
    free[#free + 1] = at
  end
end
for _, at in ipairs(free) do
  if #mine < quota then
    redis.call('SET', KEYS[at], ARGV[2], 'PX', ARGV[3])
    mine[#mine + 1] = at - 3
  end
end
return {quota, unpack(mine)}
""")

_READ_AT_ONCE: Final = 8
"""How many messages of a stream are read before their bytes are counted."""

READ: Final = Script(f"""{_LAST}
-- KEYS queue, then owner and stream of each partition; ARGV layout, asker, how many messages at most, after how many
-- bytes no more are read, a layout to replace this one if messages are lost, then for each partition the last sequence
-- that was read.
-- Gives lists {{number in KEYS, entries}}, false in place of entries where the asker is no longer the owner; or the
-- layout where it is another, or false. Each partition gets its share first, and then what others left over; when the
-- bytes are used up, those that come last get nothing.
local layout = redis.call('GET', KEYS[1])
if layout ~= ARGV[1] then return layout end
local answer, open, left, bytes = {{}}, {{}}, tonumber(ARGV[3]), tonumber(ARGV[4])
for number = 1, (#KEYS - 1) / 2 do
  if redis.call('GET', KEYS[2 * number]) == ARGV[2] then
    local known = ARGV[5 + number]
    open[#open + 1] = {{number, KEYS[2 * number + 1], '(0-' .. known, {{}}, tonumber(known)}}
  else
    answer[#answer + 1] = {{number, false}}
  end
end
while #open > 0 and left > 0 do
  local share, more = math.min(math.ceil(left / #open), {_READ_AT_ONCE}), {{}}
  for _, each in ipairs(open) do
    local count = math.min(share, left)
    local entries = count > 0 and redis.call('XRANGE', each[2], each[3], '+', 'COUNT', count) or {{}}
    for _, entry in ipairs(entries) do
      table.insert(each[4], entry)
      for _, part in ipairs(entry[2]) do bytes = bytes - #part end
    end
    left = bytes > 0 and left - #entries or 0
    if count > 0 and #entries == count then
      each[3] = '(' .. entries[count][1]
      more[#more + 1] = each
    else
      if count > 0 and #each[4] == 0 and last_of(each[2]) < each[5] then
        redis.call('SET', KEYS[1], ARGV[5])
        return ARGV[5]
      end
      if #each[4] > 0 then answer[#answer + 1] = {{each[1], each[4]}} end
    end
  end
  open = more
end
for _, each in ipairs(open) do if #each[4] > 0 then answer[#answer + 1] = {{each[1], each[4]}} end end
return answer
""")

DONE: Final = Script("""
-- KEYS queue, owner, stream, done; ARGV layout, asker, the number of the partition, ids. Gives how many were there, or
-- -1: the asker is not the owner.
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('GET', KEYS[2]) ~= ARGV[2] then return -1 end
local deleted = redis.call('XDEL', KEYS[3], unpack(ARGV, 4))
redis.call('HINCRBY', KEYS[4], ARGV[3], deleted)
return deleted
""")

GIVE_UP: Final = Script("""
-- KEYS queue, members, owners; ARGV asker, 1 if it leaves. Gives up partitions.
for at = 3, #KEYS do
  if redis.call('GET', KEYS[at]) == ARGV[1] then redis.call('DEL', KEYS[at]) end
end
if ARGV[2] == '1' then redis.call('ZREM', KEYS[2], ARGV[1]) end
return 1
""")

PUT_DEAD: Final = Script("""
-- KEYS dead letters, their order, counts by partition; ARGV id, when, the letter, its partition. One that is there
-- stays as it is, and is written once more all the same: so that waiting for replicas or the disk means something when
-- it is put a second time.
local there = redis.call('HGET', KEYS[1], ARGV[1])
if not there then redis.call('HINCRBY', KEYS[3], ARGV[4], 1) end
redis.call('HSET', KEYS[1], ARGV[1], there or ARGV[3])
return redis.call('ZADD', KEYS[2], redis.call('ZSCORE', KEYS[2], ARGV[1]) or ARGV[2], ARGV[1])
""")

LIST_DEAD: Final = Script("""
-- KEYS dead letters, their order; ARGV how many. Gives the oldest.
local answer = {}
for at, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, ARGV[1] - 1)) do
  answer[at] = redis.call('HGET', KEYS[1], id)
end
return answer
""")

DROP_DEAD: Final = Script("""
-- KEYS dead letters, their order, counts by partition; ARGV id. Gives 1, or 0: there was none.
local letter = redis.call('HGET', KEYS[1], ARGV[1])
local readable, read = pcall(cjson.decode, letter)
local partition = readable and type(read) == 'table' and read['partition']
if type(partition) == 'number' then redis.call('HINCRBY', KEYS[3], partition, -1) end
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
""")
