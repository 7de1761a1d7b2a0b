"""A user's project: tables from SQLAlchemy and from Django."""

import django
import pytest
import sqlalchemy as sa
from django.conf import settings
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from fencepost import SyncClient
from fencepost.testing.fixtures.tables import FencedTables

settings.configure(INSTALLED_APPS=[], DATABASES={})
django.setup()

from django.db import models  # noqa: E402 - Django wants its settings first


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    customer_id: Mapped[int] = mapped_column(primary_key=True)


class Order(Base):
    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    customer_id: Mapped[int | None] = mapped_column(sa.ForeignKey("customers.customer_id"))


PARCELS = sa.Table(
    "parcels", sa.MetaData(), sa.Column("parcel_id", sa.Text, primary_key=True), sa.Column("note", sa.Text)
)


class Invoice(models.Model):  # type: ignore[misc]
    number = models.CharField(max_length=20, primary_key=True)
    paid = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return str(self.number)


@pytest.mark.parametrize(
    ("table", "name", "row"),
    [
        (Order, "orders", {"order_id": "7"}),
        (PARCELS, "parcels", {"parcel_id": "7"}),
        (Invoice, "shop_invoice", {"number": "7", "paid": False}),
    ],
)
def test_a_model(
    fenced_table: FencedTables, fencepost_client: SyncClient, table: object, name: str, row: dict[str, object]
) -> None:
    made = fenced_table(table, source="builtin", rows=[row])
    assert made.name == str(made) == name
    with fencepost_client.lock(f"{name}/7", claim=True) as lease:
        assert lease.row is not None
        assert lease.row.items() >= row.items()


def test_something_else(fenced_table: FencedTables) -> None:
    with pytest.raises(TypeError, match="takes DDL as text, a SQLAlchemy Table or model, or a Django model"):
        fenced_table(7)
    with pytest.raises(ValueError, match="makes no table"):
        fenced_table("SELECT 1")
