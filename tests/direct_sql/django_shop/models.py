"""Tables that Django makes itself, and the same orders once more with the mark as a field."""

from django.db import models


class Order(models.Model):  # type: ignore[misc]
    order_id = models.TextField(primary_key=True)
    status = models.TextField(default="new")
    amount = models.IntegerField(default=0)

    class Meta:
        db_table = "orders"

    def __str__(self) -> str:
        return str(self.order_id)


class Line(models.Model):  # type: ignore[misc]
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    what = models.TextField(default="thing")

    class Meta:
        db_table = "lines"

    def __str__(self) -> str:
        return str(self.what)


class MarkedOrder(models.Model):  # type: ignore[misc]
    """Has the mark as a field, as `inspectdb` writes it: save() echoes it."""

    order_id = models.TextField(primary_key=True)
    status = models.TextField(default="new")
    amount = models.IntegerField(default=0)
    last_fence_token = models.BigIntegerField(default=0)

    class Meta:
        db_table = "orders"
        managed = False

    def __str__(self) -> str:
        return str(self.order_id)
