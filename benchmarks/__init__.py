"""`make bench`: what a fenced write costs, and against what.

One run on one machine. Every cell is a workload with its server, bounded by time; rounds alternate through all cells,
forwards and backwards, so that a machine that warms up or gets busy does not favour one of them. Each cell starts a
fresh server, on tables just vacuumed and a checkpoint just written, and reports its median over the rounds, with the
lowest and the highest.

The load comes from a process of its own on the same machine (`load.c`), or from PostgreSQL's own `pgbench`: so the
figures are those of all three together on its cores, and a ratio means more than a rate. Tokens rise, and each row
belongs to one connection, so every write of an accepting cell must be accepted. That is checked afterwards: statuses
as the clients counted them, against the rows' marks and PostgreSQL's count of updated rows.

A new workload is a `Cell` in `cells.py`; a new kind of server is a function in `drivers.py`.
"""
