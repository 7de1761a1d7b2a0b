"""The Lua scripts of locks in Redis. Redis runs a script whole: nothing happens in between, and no key expires in it.

A lock is a string key that expires. Its value is unique to the hold, so an owner knows its own. A script that fails
half way is not rolled back, so each draws numbers before it sets the lock: numbers may be lost, but there is no hold
without them.
"""

from typing import Final

from fencepost.server.locks.source import MOST_NATIVE

# Numbers in Lua are doubles, exact up to 2^53. Numbers above the limit stay drawn: a counter never goes back.
_DRAW: Final = f"""
local function draw(counter, count)
  local last = redis.call('INCRBY', counter, count)
  if last > {MOST_NATIVE} or last < tonumber(count) then
    return redis.error_reply('ERR the counter stands at ' .. string.format('%.0f', last) ..
      ', and tokens are numbers from 1 to {MOST_NATIVE}')
  end
  return last
end
"""

GRANT: Final = f"""{_DRAW}
-- KEYS lock, counter; ARGV value, TTL in ms, how many tokens.
-- Gives the last token drawn, or value and remaining ms of the hold that is in the way.
local held = redis.call('GET', KEYS[1])
if held then return {{held, redis.call('PTTL', KEYS[1])}} end
local last = draw(KEYS[2], ARGV[3])
if type(last) == 'table' then return last end
redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return last
"""

MINT: Final = f"""{_DRAW}
-- KEYS lock, counter; ARGV value, how many tokens. Gives the last token drawn, or nil: the hold is lost.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
return draw(KEYS[2], ARGV[2])
"""

TAKE: Final = """
-- Redlock's, without numbers. KEYS lock; ARGV value, TTL in ms. Gives 1, or value and remaining ms of another's hold.
local held = redis.call('GET', KEYS[1])
if held then return {held, redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return 1
"""

EXTEND: Final = """
-- KEYS lock; ARGV value, TTL in ms. Gives 1, or 0: the hold is lost.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

RELEASE: Final = """
-- KEYS lock; ARGV value. Gives how many holds ended.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""

LOOK: Final = """
-- KEYS lock. Gives value and remaining ms, or nil: it is free.
local held = redis.call('GET', KEYS[1])
if held then return {held, redis.call('PTTL', KEYS[1])} end
return false
"""
