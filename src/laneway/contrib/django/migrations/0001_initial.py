"""The tables of the outbox, in databases that can have one, and the names for permissions."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from laneway.producing import outbox


def create_outbox(apps: Any, schema_editor: Any) -> None:
    """Create the tables that do not exist."""
    del apps
    if schema_editor.connection.vendor in ("postgresql", "sqlite"):
        outbox.create(schema_editor.connection)


def _name(name: str, **options: Any) -> Any:
    key = models.BigAutoField(
        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
    )
    return migrations.CreateModel(name, [("id", key)], options={"managed": False, **options})


class Migration(migrations.Migration):
    """Undoing it keeps the tables, since messages may wait in them."""

    initial = True
    dependencies = ()
    operations = (
        migrations.RunPython(create_outbox, migrations.RunPython.noop),
        _name(
            "DeadLetter",
            verbose_name="dead letter",
            default_permissions=("view", "change", "delete"),
        ),
        _name(
            "Dashboard",
            verbose_name="dashboard",
            verbose_name_plural="dashboard",
            default_permissions=("view", "change"),
        ),
    )
