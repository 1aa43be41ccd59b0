"""The tables of the outbox, in databases that can have one, and the names for permissions."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from laneway.contrib.django import options


def create_tables(apps: Any, schema_editor: Any) -> None:
    """Create the tables that do not exist."""
    del apps
    options.create_outbox(schema_editor.connection)


def _model(name: str, key: str = "", **options: Any) -> Any:
    field: Any = models.BigAutoField(
        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
    )
    if key:
        field = models.TextField(primary_key=True, serialize=False)
    options = {"base_manager_name": "objects", "default_permissions": (), **options}
    return migrations.CreateModel(name, [(key or "id", field)], options=options)


class Migration(migrations.Migration):
    """Undoing it keeps the tables, since messages may wait in them."""

    initial = True
    dependencies = ()
    operations = (
        migrations.SeparateDatabaseAndState(
            [migrations.RunPython(create_tables, migrations.RunPython.noop)],
            [
                _model("Outbox", db_table="laneway_outbox"),
                _model("Forwarder", "namespace", db_table="laneway_outbox_forwarder"),
                _model("Once", "message_id", db_table="laneway_once"),
            ],
        ),
        _model(
            "DeadLetter",
            managed=False,
            verbose_name="dead letter",
            default_permissions=("view", "change", "delete"),
        ),
        _model(
            "Dashboard",
            managed=False,
            verbose_name="dashboard",
            verbose_name_plural="dashboard",
            default_permissions=("view", "change"),
        ),
    )
