"""A Django application whose tables are protected."""

from pathlib import Path

from django.apps import AppConfig


class ShopConfig(AppConfig):  # type: ignore[misc]
    name = "tests.direct_sql.django_shop"
    label = "django_shop"
    path = str(Path(__file__).parent)
