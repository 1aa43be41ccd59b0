"""The tables of the outbox, in databases that can have one."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from laneway.producing import outbox


def create_outbox(apps: Any, schema_editor: Any) -> None:
    """Create the tables that do not exist."""
    del apps
    if schema_editor.connection.vendor in ("postgresql", "sqlite"):
        outbox.create(schema_editor.connection)


class Migration(migrations.Migration):
    """Undoing it keeps the tables, since messages may wait in them."""

    initial = True
    dependencies = ()
    operations = (migrations.RunPython(create_outbox, migrations.RunPython.noop),)
