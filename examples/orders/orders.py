"""A small order service. Several processes of it run; a lock per order keeps them apart. Or so it seems."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencepost import SyncClient

engine = create_engine(os.environ["DATABASE_URL"])
locks = SyncClient(os.environ["FENCEPOST_URL"])
payments = httpx.Client(base_url=os.environ["PAYMENTS_URL"], timeout=60)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Renew leases while the service runs."""
    with locks:
        yield


app = FastAPI(lifespan=lifespan)


class Base(DeclarativeBase):
    """All tables of the service."""


class Order(Base):
    """An order: new, and then either paid or cancelled."""

    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]


@contextmanager
def locked(order_id: str) -> Iterator[Order]:
    """Give an order that no other process changes meanwhile, and store what has become of it."""
    with locks.lock(f"orders/{order_id}", wait=5) as _lease, Session(engine) as session:
        yield session.get_one(Order, order_id)
        session.commit()


@app.post("/orders/{order_id}/pay")
def pay(order_id: str) -> dict[str, str]:
    """Charge a new order."""
    with locked(order_id) as order:
        if order.status != "new":
            raise HTTPException(409, f"the order is {order.status}")
        payments.post(f"/charges/{order_id}").raise_for_status()
        order.status = "paid"
    return {"status": "paid"}


@app.post("/orders/{order_id}/cancel")
def cancel(order_id: str) -> dict[str, str]:
    """Cancel a new order."""
    with locked(order_id) as order:
        if order.status != "new":
            raise HTTPException(409, f"the order is {order.status}")
        order.status = "cancelled"
    return {"status": "cancelled"}
